package main

import (
	"io"
	"os"

	"github.com/sluice-qos/sluice/internal/cli"
	"github.com/sluice-qos/sluice/internal/weir"
)

type importing struct {
	Weir importWeir `cmd:"" help:"Convert a JSON limit file of Bloomberg's Weir."`
}

type importWeir struct {
	File string `arg:"" help:"The JSON file with user_to_qos_id and qos." predictor:"file"`
}

// Help tells what becomes of what.
func (*importWeir) Help() string {
	return `Prints a limit file of Sluice. Each policy becomes a tier, with the limits that it does not name from DEFAULT; DEFAULT becomes the default tier. user_GET, user_PUT, user_POST, user_DELETE and user_HEAD become requests, user_conns concurrent, user_bnd_dwn and user_bnd_up bandwidth. Operations of S3, such as user_LISTBUCKETS, become requests of the class of that name, with classes: s3. What has no counterpart, and each number that had to change, becomes a comment: read them. Then see what came out with sluice check.

The exit code is 1 if the file cannot be converted; nothing is printed then but the error.`
}

func (i *importWeir) execute(stdout, stderr io.Writer) int {
	data, err := os.ReadFile(i.File)
	if err != nil {
		return cli.Exit(stderr, "sluice import weir", err)
	}
	converted, err := weir.Convert(i.File, data)
	if err != nil {
		return cli.Exit(stderr, "sluice import weir", err)
	}
	_, err = stdout.Write(converted)
	return cli.Exit(stderr, "sluice import weir", err)
}
