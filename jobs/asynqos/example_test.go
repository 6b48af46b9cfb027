package asynqos_test

import (
	"context"
	"encoding/json"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/jobs/asynqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/redisslots"
)

// A worker whose users may run as many reports at a time as their tiers say, and a producer.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	tiers := jobs.FileTiers{} // without a limit file: 1 job for free users, 3 for pro and pro_plus, 5 for enterprise
	fair, err := asynqos.New(asynqos.Config{
		Runner: jobs.RunnerConfig{Name: "asynq", Slots: redisslots.New(client), Tiers: tiers},
		Redis:  client,
		User: func(task *asynq.Task) string {
			var report struct {
				User string `json:"user_id"`
			}
			_ = json.Unmarshal(task.Payload(), &report) // without a user it is governed by nothing
			return report.User
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := asynq.NewServeMux()
	mux.Use(fair.Middleware)
	mux.HandleFunc("report", func(context.Context, *asynq.Task) error { return nil })
	server := asynq.NewServerFromRedisClient(client, fair.Configure(asynq.Config{Queues: map[string]int{"analysis_default": 1, "analysis_priority": 1}}))
	if err := server.Start(mux); err != nil {
		log.Fatal(err)
	}
	terminated, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	running, end := context.WithCancel(context.Background())
	go func() {
		<-terminated.Done()
		server.Shutdown()
		end() // after the tasks, whose slots it gives back
	}()

	// The queue is that of the user's tier, and the header is for the metric of waits.
	tier, _ := tiers.Tier(running, jobs.UserKey("alice"))
	task := asynq.NewTaskWithHeaders("report", []byte(`{"user_id": "alice"}`), map[string]string{asynqos.SinceHeader: time.Now().Format(time.RFC3339Nano)})
	if _, err := asynq.NewClientFromRedisClient(client).Enqueue(task, asynq.Queue(jobs.SelectQueue("analysis", tier, false))); err != nil {
		log.Fatal(err)
	}
	if err := fair.Run(running); err != nil {
		log.Fatal(err)
	}
}
