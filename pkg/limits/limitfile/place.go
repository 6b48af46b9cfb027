package limitfile

import "github.com/sluice-qos/sluice/pkg/limits"

// place tells, at the beginning of an error, what it is about: a field of a tier or
// a user (at an endpoint), or something that has no name.
type place struct{ kind, name, endpoint, field string }

func (p place) atField(field string) place {
	p.field = field
	return p
}

func (p place) atEndpoint(endpoint string) place {
	p.endpoint = endpoint
	return p
}

// below is the place of a field of the mapping that is here.
func (p place) below(field string) place {
	if p.field != "" {
		field = p.field + "." + field
	}
	p.field = field
	return p
}

func (p place) String() string {
	s := p.kind
	if p.name != "" {
		s += " " + quote(p.name)
	}
	switch p.endpoint {
	case "":
	case limits.All:
		s += " at all endpoints together"
	default:
		s += " at " + p.endpoint
	}
	// At the top of the file a field is all there is to say.
	if s != "" && p.field != "" {
		s += ": "
	}
	return s + p.field
}
