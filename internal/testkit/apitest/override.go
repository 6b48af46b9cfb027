package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
)

// By hand: what is set for alice is kept as it is told, and nobody else may be touched.

func (f *Fixed) Overrides() api.Overrides {
	return api.Overrides{From: f.List.From, Capacity: 1000, Overrides: []api.UserOverride{
		{Name: api.Name{User: "alice"}, Limits: json.RawMessage(`{"requests":{"GET":{"minute":9,"second":7}},"concurrent":50}`), Reason: "launch day", By: "ops from 127.0.0.1", Until: Noon.Add(time.Hour)},
		{Name: api.Name{User: Evil[0]}, Limits: json.RawMessage(`"gold"`), Reason: Evil[2], By: Evil[3], Until: Noon, Problem: Evil[0]},
	}}
}

func (f *Fixed) Override(_ context.Context, a api.OverrideRequest) (api.Override, error) {
	if a.User != "alice" {
		return api.Override{}, fmt.Errorf("limits: no for %s", a.Limits)
	}
	return api.Override{From: f.List.From, UserOverride: api.UserOverride{Name: api.Name{User: a.User}, Limits: a.Limits, Reason: a.Reason, Until: Noon.Add(a.For)}}, nil
}

func (f *Fixed) RemoveOverride(_ context.Context, a api.OverrideRequest) (api.Override, error) {
	if a.User != "alice" {
		return api.Override{}, api.ErrNoOverride
	}
	return api.Override{From: f.List.From, UserOverride: api.UserOverride{Name: api.Name{User: a.User}, Limits: json.RawMessage(`"pro"`), Reason: "launch"}}, nil
}

func (f *Fixed) Unblock(_ context.Context, a api.OverrideRequest) (api.Unblocked, error) {
	if a.User != "alice" {
		return api.Unblocked{}, fmt.Errorf("%w: gone", api.ErrUnavailable)
	}
	return api.Unblocked{From: f.List.From, Name: api.Name{User: a.User}, Sent: true, Note: "because " + a.Reason}, nil
}

func (f *Fixed) Refuse(api.OverrideRequest, error) {}
