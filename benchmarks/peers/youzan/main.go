// Measures youzan/go-nsq, as ../go does nsqio's: a job as JSON in argv[1], a result as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spaolacci/murmur3"
	"github.com/youzan/go-nsq"
)

type job struct {
	Scenario    string   `json:"scenario"`
	Lookupds    []string `json:"lookupds"`
	Topic       string   `json:"topic"`
	Channel     string   `json:"channel"`
	Messages    int64    `json:"messages"`
	Warmup      int64    `json:"warmup"`
	MaxInFlight int      `json:"max_in_flight"`
	Text        string   `json:"text"`
	Callers     int64    `json:"callers"`
	Keyed       bool     `json:"keyed"`
	Ordered     bool     `json:"ordered"`
	Linger      float64  `json:"linger"`
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func cpu() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	at := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return at(usage.Utime) + at(usage.Stime)
}

func rss() int64 {
	statm, err := os.ReadFile("/proc/self/statm")
	check(err)
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	check(err)
	return pages * int64(os.Getpagesize())
}

// meter is CPU, wall clock and memory between two messages.
type meter struct {
	used float64
	at   time.Time
	out  map[string]any
}

func (m *meter) start() {
	m.out = map[string]any{"rss_start": rss()}
	m.used, m.at = cpu(), time.Now()
}

func (m *meter) stop(messages int64) {
	m.out["cpu"] = cpu() - m.used
	m.out["wall"] = time.Since(m.at).Seconds()
	m.out["rss_end"] = rss()
	m.out["messages"] = messages
}

type silent struct{}

func (silent) Output(int, string) error { return nil }

func config(j job) *nsq.Config {
	c := nsq.NewConfig()
	c.MaxInFlight = j.MaxInFlight
	c.EnableOrdered = j.Ordered
	c.Hasher = murmur3.New32()
	return c
}

func consume(j job) map[string]any {
	var seen int64
	var m meter
	done := make(chan bool)
	consumer, err := nsq.NewConsumer(j.Topic, j.Channel, config(j))
	check(err)
	consumer.SetLogger(silent{}, nsq.LogLevelError)
	consumer.AddConcurrentHandlers(nsq.HandlerFunc(func(message *nsq.Message) error {
		switch atomic.AddInt64(&seen, 1) {
		case j.Warmup:
			m.start()
		case j.Warmup + j.Messages:
			m.stop(j.Messages)
			close(done)
		}
		return nil
	}), 4)
	check(consumer.ConnectToNSQLookupds(j.Lookupds))
	<-done
	time.Sleep(time.Duration(j.Linger * float64(time.Second)))
	return m.out
}

func publish(j job) map[string]any {
	producer, err := nsq.NewTopicProducerMgr([]string{j.Topic}, config(j))
	check(err)
	producer.SetLogger(silent{}, nsq.LogLevelError)
	producer.AddLookupdNodes(j.Lookupds)
	body := []byte(j.Text)
	rounds := func(messages int64) {
		var callers sync.WaitGroup
		for number := range j.Callers {
			callers.Add(1)
			go func() {
				defer callers.Done()
				for count := range messages / j.Callers {
					if j.Keyed {
						key := fmt.Sprintf("%d-%d", number, count%64)
						_, _, _, err := producer.PublishOrdered(j.Topic, []byte(key), body)
						check(err)
					} else {
						check(producer.Publish(j.Topic, body))
					}
				}
			}()
		}
		callers.Wait()
	}
	rounds(j.Warmup)
	var m meter
	m.start()
	rounds(j.Messages)
	m.stop(j.Messages)
	return m.out
}

func main() {
	var j job
	check(json.Unmarshal([]byte(os.Args[1]), &j))
	act := map[string]func(job) map[string]any{"consume": consume, "publish": publish}[j.Scenario]
	line, err := json.Marshal(act(j))
	check(err)
	fmt.Println(string(line))
}
