// Driver of go-nsq, used as its documentation shows.  Gets a job as JSON in argv[1], and prints a result as JSON,
// like the Python drivers.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nsqio/go-nsq"
)

type job struct {
	Scenario       string   `json:"scenario"`
	Addresses      []string `json:"addresses"`
	Topic          string   `json:"topic"`
	Channel        string   `json:"channel"`
	Messages       int64    `json:"messages"`
	Warmup         int64    `json:"warmup"`
	MaxInFlight    int      `json:"max_in_flight"`
	Text           string   `json:"text"`
	Codec          string   `json:"codec"`
	Callers        int64    `json:"callers"`
	Batch          int64    `json:"batch"`
	Linger         float64  `json:"linger"`
	OutputBufferMS int64    `json:"output_buffer_ms"`
}

type result map[string]any

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

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

// meter measures CPU, wall clock and memory between two messages.
type meter struct {
	used float64
	at   time.Time
	out  result
}

func (m *meter) start() {
	m.out = result{"rss_start": rss()}
	m.used, m.at = cpu(), time.Now()
}

func (m *meter) stop(messages int64) {
	m.out["cpu"] = cpu() - m.used
	m.out["wall"] = time.Since(m.at).Seconds()
	m.out["rss_end"] = rss()
	m.out["messages"] = messages
}

func config(j job) *nsq.Config {
	c := nsq.NewConfig()
	c.MaxInFlight = j.MaxInFlight
	c.Snappy = j.Codec == "snappy"
	c.Deflate = j.Codec == "deflate"
	if j.OutputBufferMS > 0 {
		c.OutputBufferTimeout = time.Duration(j.OutputBufferMS) * time.Millisecond
	}
	return c
}

func consumer(j job, handler nsq.HandlerFunc) *nsq.Consumer {
	consumer, err := nsq.NewConsumer(j.Topic, j.Channel, config(j))
	check(err)
	consumer.SetLoggerLevel(nsq.LogLevelError)
	consumer.AddHandler(handler)
	check(consumer.ConnectToNSQDs(j.Addresses))
	return consumer
}

func consume(j job) result {
	var seen int64
	var m meter
	done := make(chan bool)
	consumer(j, func(message *nsq.Message) error {
		switch atomic.AddInt64(&seen, 1) {
		case j.Warmup:
			m.start()
		case j.Warmup + j.Messages:
			m.stop(j.Messages)
			close(done)
		}
		return nil
	})
	<-done
	time.Sleep(seconds(j.Linger))
	return m.out
}

func latency(j job) result {
	ages := []float64{}
	done := make(chan bool)
	consumer(j, func(message *nsq.Message) error {
		sent, err := strconv.ParseInt(strings.TrimLeft(string(message.Body[:20]), "0"), 10, 64)
		check(err)
		ages = append(ages, float64(monotonic()-sent)/1e9)
		if int64(len(ages)) == j.Messages {
			close(done)
		}
		return nil
	})
	<-done
	time.Sleep(seconds(j.Linger))
	sort.Float64s(ages)
	at := func(share float64) float64 { return ages[min(len(ages)-1, int(share*float64(len(ages))))] }
	return result{"messages": len(ages), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": ages[len(ages)-1]}
}

func publish(j job) result {
	producer, err := nsq.NewProducer(j.Addresses[0], config(j))
	check(err)
	producer.SetLoggerLevel(nsq.LogLevelError)
	body := []byte(j.Text)
	bodies := [][]byte{}
	for range j.Batch {
		bodies = append(bodies, body)
	}
	rounds := func(messages int64) {
		var callers sync.WaitGroup
		for range j.Callers {
			callers.Add(1)
			go func() {
				defer callers.Done()
				for range messages / (j.Callers * j.Batch) {
					if j.Batch == 1 {
						check(producer.Publish(j.Topic, body))
					} else {
						check(producer.MultiPublish(j.Topic, bodies))
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
	act := map[string]func(job) result{"consume": consume, "latency": latency, "publish": publish}[j.Scenario]
	line, err := json.Marshal(act(j))
	check(err)
	fmt.Println(string(line))
}
