package limits

import (
	"slices"
	"strings"
)

// S3Classes returns the ready-made operation classes of an S3 service (classes: s3),
// in the order in which they are matched. They are operations of the S3 API:
//
//	LISTBUCKETS           GET /
//	LISTOBJECTSV2         GET /bucket?list-type=2
//	LISTOBJECTVERSIONS    GET /bucket?versions
//	LISTMULTIPARTUPLOADS  GET /bucket?uploads
//	LISTOBJECTS           GET /bucket
//	CREATEBUCKET          PUT /bucket
//	DELETEOBJECTS         POST /bucket?delete
//	GETOBJECT             GET /bucket/key
//	PUTOBJECT             PUT /bucket/key, a copy (x-amz-copy-source) included
//	DELETEOBJECT          DELETE /bucket/key, of one version too
//
// What asks for an aspect of a bucket or an object (?acl, ?location, ?policy,
// ?tagging, …), a part of a multipart upload (?uploadId), and HEAD have no class:
// they count against their verb and All alone.
//
// A request to a host below one of some hosts, each h or *.h, is virtual-host style: its bucket is
// in the name of the host, and its path is the key. All other requests are path style. Without hosts
// "GET /key" of virtual-host style looks like the list of a bucket; only what the query tells apart is
// right: list-type, versions, uploads and delete.
func S3Classes(hosts []string) []Class {
	var below []string
	for _, host := range hosts {
		below = append(below, "*."+strings.TrimPrefix(host, "*."))
	}
	slices.Sort(below)
	below = slices.Compact(below)
	const (
		service  = `^/$`
		buckets  = `^/([^/]+/?)?$` // a bucket, in either style
		bucket   = `^/[^/]+/?$`
		object   = `^/[^/]+/.`
		listType = "list-type"

		// The same of virtual-host style.
		hostsBucket, hostsObject = `^/$`, `^/.`
	)
	// class has a match of path style and one of virtual-host style, unless its path is "".
	class := func(name, method, path, hostsPath string, query, noQuery []string) Class {
		m := Match{Methods: []string{method}, NoHosts: below, PathRegex: path, RawPath: true, Query: query, NoQuery: noQuery}
		c := Class{Name: name, Any: []Match{m}}
		if len(below) > 0 && hostsPath != "" {
			m.Hosts, m.NoHosts, m.PathRegex = below, nil, hostsPath
			c.Any = append(c.Any, m)
		}
		return c
	}
	return []Class{
		class("LISTOBJECTSV2", "GET", buckets, hostsBucket, []string{listType}, nil),
		class("LISTOBJECTVERSIONS", "GET", buckets, hostsBucket, []string{"versions"}, nil),
		class("LISTMULTIPARTUPLOADS", "GET", buckets, hostsBucket, []string{"uploads"}, nil),
		class("LISTOBJECTS", "GET", bucket, hostsBucket, nil, s3BucketAspects()),
		class("LISTBUCKETS", "GET", service, "", nil, s3BucketAspects()),
		class("GETOBJECT", "GET", object, hostsObject, nil, s3ObjectAspects()),
		class("PUTOBJECT", "PUT", object, hostsObject, nil, s3ObjectAspects()),
		class("DELETEOBJECT", "DELETE", object, hostsObject, nil, s3ObjectAspects()),
		class("DELETEOBJECTS", "POST", buckets, hostsBucket, []string{"delete"}, nil),
		class("CREATEBUCKET", "PUT", bucket, hostsBucket, nil, s3BucketAspects()),
	}
}

// s3BucketAspects are the keys of the query with which S3 means not a bucket but
// something about it (Amazon S3 API Reference, "Actions": those of the GetBucket…
// and PutBucket… operations, and CreateSession).
func s3BucketAspects() []string {
	return []string{
		"abac", "accelerate", "acl", "analytics", "cors", "encryption", "intelligent-tiering", "inventory", "lifecycle",
		"location", "logging", "metadataConfiguration", "metadataInventoryTable", "metadataJournalTable", "metadataTable",
		"metrics", "notification", "object-lock", "ownershipControls", "policy", "policyStatus", "publicAccessBlock",
		"replication", "requestPayment", "session", "tagging", "versioning", "website",
	}
}

// s3ObjectAspects are the keys of the query with which S3 means not an object but
// something about it, or a multipart upload or a part of one.
func s3ObjectAspects() []string {
	return []string{"acl", "attributes", "encryption", "legal-hold", "renameObject", "retention", "tagging", "torrent", "uploadId"}
}
