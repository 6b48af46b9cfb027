package limits

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
// The classes are for path-style requests. Where buckets are host names
// (bucket.s3.example.com/key) "GET /key" looks like the list of a bucket; only
// what the query tells apart is right: list-type, versions, uploads and delete.
func S3Classes() []Class {
	const (
		service  = `^/$`
		buckets  = `^/([^/]+/?)?$` // a bucket, in either style
		bucket   = `^/[^/]+/?$`
		object   = `^/[^/]+/.`
		listType = "list-type"
	)
	class := func(name string, m Match) Class {
		m.RawPath = true
		return Class{Name: name, Any: []Match{m}}
	}
	get := []string{"GET"}
	return []Class{
		class("LISTOBJECTSV2", Match{Methods: get, PathRegex: buckets, Query: []string{listType}}),
		class("LISTOBJECTVERSIONS", Match{Methods: get, PathRegex: buckets, Query: []string{"versions"}}),
		class("LISTMULTIPARTUPLOADS", Match{Methods: get, PathRegex: buckets, Query: []string{"uploads"}}),
		class("LISTOBJECTS", Match{Methods: get, PathRegex: bucket, NoQuery: s3BucketAspects()}),
		class("LISTBUCKETS", Match{Methods: get, PathRegex: service, NoQuery: s3BucketAspects()}),
		class("GETOBJECT", Match{Methods: get, PathRegex: object, NoQuery: s3ObjectAspects()}),
		class("PUTOBJECT", Match{Methods: []string{"PUT"}, PathRegex: object, NoQuery: s3ObjectAspects()}),
		class("DELETEOBJECT", Match{Methods: []string{"DELETE"}, PathRegex: object, NoQuery: s3ObjectAspects()}),
		class("DELETEOBJECTS", Match{Methods: []string{"POST"}, PathRegex: buckets, Query: []string{"delete"}}),
		class("CREATEBUCKET", Match{Methods: []string{"PUT"}, PathRegex: bucket, NoQuery: s3BucketAspects()}),
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
