package helm

import (
	"testing"

	core "k8s.io/api/core/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// Namespaces that enforce Kubernetes' "restricted" policy take the pods: no root, no rights, no part of the node. It is the
// code by which the API server decides.
func TestPodsAreRestricted(t *testing.T) {
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	for _, text := range []string{"", readFile(t, rich), readFile(t, small)} {
		for name, d := range deployments(t, render(t, text)) {
			pod := d.Spec.Template
			for _, result := range checks.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec) {
				if !result.Allowed {
					t.Errorf("%s: %s: %s", name, result.ForbiddenReason, result.ForbiddenDetail)
				}
			}
		}
	}
}

// What that policy leaves open.
func TestPodsTakeNoMoreThanTheyNeed(t *testing.T) {
	for _, text := range []string{"", readFile(t, rich), readFile(t, small)} {
		for name, d := range deployments(t, render(t, text)) {
			pod := d.Spec.Template.Spec
			if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
				t.Errorf("%s has a token of the API", name)
			}
			for _, c := range append(pod.InitContainers, pod.Containers...) {
				if s := c.SecurityContext; s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
					t.Errorf("%s: %s may write its root", name, c.Name)
				}
				for _, have := range []core.ResourceList{c.Resources.Requests, c.Resources.Limits} {
					if have.Memory().IsZero() {
						t.Errorf("%s: %s: requests %v, limits %v", name, c.Name, c.Resources.Requests, c.Resources.Limits)
					}
				}
				for _, m := range c.VolumeMounts {
					if m.SubPath != "" {
						t.Errorf("%s: %s mounts %s by subPath, which never changes", name, c.Name, m.MountPath)
					}
				}
			}
		}
	}
}

// A pod of HAProxy may take as long as HAProxy, and what goes before.
func TestPodsEndAfterHAProxy(t *testing.T) {
	for text, want := range map[string]int64{"": 5 + 60 + 15, readFile(t, rich): 10 + 300 + 15} {
		if got := *deployments(t, render(t, text))["haproxy"].Spec.Template.Spec.TerminationGracePeriodSeconds; got != want {
			t.Errorf("terminationGracePeriodSeconds: got %d, want %d", got, want)
		}
	}
}
