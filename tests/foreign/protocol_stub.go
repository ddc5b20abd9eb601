// What nsqd's protocol tests use of package nsqd, for a server that is a program: the nsqd on PATH.
// Go's overlay puts this file beside the tests, in a package of their own; nothing of nsqd is compiled.

package nsqd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/nsqio/nsq/internal/protocol"
	"github.com/nsqio/nsq/internal/test"
)

const (
	frameTypeResponse int32 = iota
	frameTypeError
	frameTypeMessage
)

const (
	LOG_DEBUG             = 1
	TLSRequiredExceptHTTP = "tcp-https"
	TLSRequired           = "true"
)

type Options struct {
	Logger                   test.Logger
	LogLevel                 int
	TCPAddress               string
	HTTPAddress              string
	HTTPSAddress             string
	DataPath                 string
	AuthHTTPAddresses        []string
	ClientTimeout            time.Duration
	QueueScanRefreshInterval time.Duration
	MsgTimeout               time.Duration
	MaxReqTimeout            time.Duration
	MaxHeartbeatInterval     time.Duration
	MaxOutputBufferTimeout   time.Duration
	MaxOutputBufferSize      int64
	MaxBodySize              int64
	MaxMsgSize               int64
	MaxRdyCount              int64
	MemQueueSize             int64
	TLSCert                  string
	TLSKey                   string
	TLSRootCAFile            string
	TLSClientAuthPolicy      string
	TLSRequired              string
	DeflateEnabled           bool
	SnappyEnabled            bool
}

// NewOptions has nsqd's defaults.
func NewOptions() *Options {
	return &Options{
		MsgTimeout:             time.Minute,
		MaxReqTimeout:          time.Hour,
		MaxHeartbeatInterval:   time.Minute,
		MaxOutputBufferTimeout: 30 * time.Second,
		MaxOutputBufferSize:    64 << 10,
		MaxBodySize:            5 << 20,
		MaxMsgSize:             1 << 20,
		MaxRdyCount:            2500,
		MemQueueSize:           10000,
		DeflateEnabled:         true,
		SnappyEnabled:          true,
	}
}

func (o *Options) flags() []string {
	given := []string{
		"--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--https-address=127.0.0.1:0",
		"--data-path=" + o.DataPath,
		fmt.Sprintf("--msg-timeout=%s", o.MsgTimeout),
		fmt.Sprintf("--max-req-timeout=%s", o.MaxReqTimeout),
		fmt.Sprintf("--max-heartbeat-interval=%s", o.MaxHeartbeatInterval),
		fmt.Sprintf("--max-output-buffer-timeout=%s", o.MaxOutputBufferTimeout),
		fmt.Sprintf("--max-output-buffer-size=%d", o.MaxOutputBufferSize),
		fmt.Sprintf("--max-body-size=%d", o.MaxBodySize),
		fmt.Sprintf("--max-msg-size=%d", o.MaxMsgSize),
		fmt.Sprintf("--max-rdy-count=%d", o.MaxRdyCount),
		fmt.Sprintf("--mem-queue-size=%d", o.MemQueueSize),
		fmt.Sprintf("--deflate=%t", o.DeflateEnabled),
		fmt.Sprintf("--snappy=%t", o.SnappyEnabled),
	}
	for name, value := range map[string]string{
		"tls-cert": o.TLSCert, "tls-key": o.TLSKey, "tls-root-ca-file": o.TLSRootCAFile,
		"tls-client-auth-policy": o.TLSClientAuthPolicy, "tls-required": o.TLSRequired,
	} {
		if value != "" {
			given = append(given, "--"+name+"="+value)
		}
	}
	for _, address := range o.AuthHTTPAddresses {
		given = append(given, "--auth-http-address="+address)
	}
	return given
}

type NSQD struct {
	command   *exec.Cmd
	addresses map[string]net.Addr
}

var listening = regexp.MustCompile(`(TCP|HTTPS?): listening on (\S+)`)

// New starts the program, and returns when it listens.
func New(opts *Options) (*NSQD, error) {
	n := &NSQD{command: exec.Command("nsqd", opts.flags()...), addresses: map[string]net.Addr{}}
	n.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := n.command.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := n.command.Start(); err != nil {
		return nil, err
	}
	wanted := 2
	if opts.TLSCert != "" {
		wanted = 3
	}
	lines := bufio.NewScanner(log)
	for len(n.addresses) < wanted && lines.Scan() {
		if found := listening.FindStringSubmatch(lines.Text()); found != nil {
			address, err := net.ResolveTCPAddr("tcp", found[2])
			if err != nil {
				return nil, err
			}
			n.addresses[found[1]] = address
		}
	}
	go io.Copy(io.Discard, log)
	if len(n.addresses) < wanted {
		n.Exit()
		return nil, errors.New("nsqd does not listen")
	}
	return n, nil
}

func (n *NSQD) Main() error            { return nil }
func (n *NSQD) RealTCPAddr() net.Addr  { return n.addresses["TCP"] }
func (n *NSQD) RealHTTPAddr() net.Addr { return n.addresses["HTTP"] }
func (n *NSQD) GetTopic(s string) *Topic {
	t := &Topic{nsqd: n, name: s}
	t.post("/topic/create", "", nil)
	return t
}

func (n *NSQD) Exit() {
	n.command.Process.Signal(syscall.SIGTERM)
	n.command.Wait()
}

type Topic struct {
	nsqd *NSQD
	name string
}

func (t *Topic) post(path string, channel string, body []byte) {
	query := url.Values{"topic": {t.name}}
	if channel != "" {
		query.Set("channel", channel)
	}
	address := fmt.Sprintf("http://%s%s?%s", t.nsqd.RealHTTPAddr(), path, query.Encode())
	answer, err := http.Post(address, "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	answer.Body.Close()
	if answer.StatusCode != 200 {
		panic(path + ": " + answer.Status)
	}
}

func (t *Topic) GenerateID() MessageID { return MessageID{} }

func (t *Topic) PutMessage(m *Message) error {
	t.post("/pub", "", m.Body)
	return nil
}

// A Channel has what the tests name of one; those that look into it are not run.
type Channel struct {
	topic            *Topic
	name             string
	messageCount     uint64
	requeueCount     uint64
	timeoutCount     uint64
	memoryMsgChan    chan *Message
	inFlightMutex    sync.Mutex
	inFlightMessages map[MessageID]*Message
	deferredMutex    sync.Mutex
	deferredMessages map[MessageID]*item
}

type item struct {
	Value    interface{}
	Priority int64
}

func (t *Topic) GetChannel(name string) *Channel {
	t.post("/channel/create", name, nil)
	return &Channel{topic: t, name: name}
}

func (c *Channel) Pause() error   { c.topic.post("/channel/pause", c.name, nil); return nil }
func (c *Channel) UnPause() error { c.topic.post("/channel/unpause", c.name, nil); return nil }
func (c *Channel) Depth() int64   { return 0 }

type MessageID [16]byte

type Message struct {
	ID        MessageID
	Body      []byte
	Timestamp int64
	Attempts  uint16
	deferred  time.Duration
}

func NewMessage(id MessageID, body []byte) *Message { return &Message{ID: id, Body: body} }

func decodeMessage(b []byte) (*Message, error) {
	if len(b) < 26 {
		return nil, errors.New("message too short")
	}
	m := &Message{Timestamp: int64(binary.BigEndian.Uint64(b)), Attempts: binary.BigEndian.Uint16(b[8:]), Body: b[26:]}
	copy(m.ID[:], b[10:26])
	return m, nil
}

// protocolV2 is named by tests that are not run.
type protocolV2 struct{ nsqd *NSQD }

func (p *protocolV2) NewClient(net.Conn) protocol.Client         { return nil }
func (p *protocolV2) IOLoop(protocol.Client) error               { return nil }
func (p *protocolV2) Exec(interface{}, [][]byte) ([]byte, error) { return nil, nil }

func newClientV2(int64, net.Conn, *NSQD) interface{} { return nil }
