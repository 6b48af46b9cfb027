package cli

// KeySecret is the flag that hides users' names.
type KeySecret struct {
	File string `name:"key-secret-file" predictor:"file" help:"Hide users' names: Redis, logs, metrics and the page have keys instead, made with the first secret of this file, which each HAProxy must have as SLUICE_KEY_SECRET. One secret a line, in base64 (openssl rand -base64 32); further ones are previous secrets, by which users are known as well. It is read again when it changes." placeholder:"FILE" env:"SLUICE_KEY_SECRET_FILE"`
}
