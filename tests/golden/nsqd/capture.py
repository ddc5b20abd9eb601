"""Make the *.hex files beside this one anew, from a real nsqd.

    python tests/golden/nsqd/capture.py /path/to/nsqd

Every file is what nsqd wrote on one new connection, and says in its first lines what was sent.  Nothing of the library
is used, so that the files bear witness against it.  The tests read the files and need no nsqd.
"""

from __future__ import annotations

import contextlib
import datetime
import http.server
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent


def size(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big")


def identify(**keys: object) -> bytes:
    body = json.dumps({"client_id": "golden", "hostname": "golden.local", **keys}).encode()
    return b"IDENTIFY\n" + size(body) + body


def read_for(sock: socket.socket, seconds: float) -> bytes:
    """Return what comes until there is nothing more for *seconds*, or the end."""
    sock.settimeout(seconds)
    got = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while data := sock.recv(1 << 16):
            got += data
    return got


@contextlib.contextmanager
def nsqd(program: str, *flags: str) -> Iterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", f"-data-path={folder}", *flags]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"TCP: listening on 127\.0\.0\.1:(\d+)", line):
                    port = int(found[1])
                    break
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            time.sleep(0.2)
            yield port
        finally:
            process.terminate()
            process.wait()
            drain.join()


def save(name: str, flags: tuple[str, ...], sent: list[bytes], got: bytes) -> None:
    lines = ["# nsqd 1.3.0" + "".join(f" {flag}" for flag in flags), "# sent, each after the answer to the one before:"]
    for data in sent:
        text = repr(data)
        lines.append(f"#   {text}" if len(text) < 400 else f"#   {text[:200]} ... ({len(data)} bytes)")
    lines.append("# received:")
    lines += [got[at : at + 32].hex(" ") for at in range(0, len(got), 32)]
    (HERE / f"{name}.hex").write_text("\n".join(lines) + "\n")
    print(f"{name}: {len(got)} bytes {got[:70]!r}")


def converse(port: int, sent: list[bytes], wait: float = 0.3) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        got = b""
        for data in sent:
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
            got += read_for(sock, wait)
        return got


V2 = b"  V2"
SUB = b"SUB golden ch\n"
ID = b"0123456789abcdef"
NEGOTIATE = identify(feature_negotiation=True)

PLAIN = {
    "identify_reply": [V2 + NEGOTIATE],
    "identify_plain_ok": [V2 + identify()],
    "identify_all_options": [
        V2
        + identify(
            feature_negotiation=True,
            heartbeat_interval=5000,
            output_buffer_size=1024,
            output_buffer_timeout=100,
            sample_rate=50,
            msg_timeout=10000,
        )
    ],
    "identify_unbuffered": [V2 + identify(feature_negotiation=True, output_buffer_size=-1, output_buffer_timeout=-1)],
    "sub_ok": [V2 + NEGOTIATE, SUB],
    "pub_ok": [V2, b"PUB golden_pub\n" + size(b"x") + b"x", b"DPUB golden_pub 10\n" + size(b"x") + b"x"],
    "mpub_ok": [V2, b"MPUB golden_pub\n" + size(b"0" * 14) + b"\0\0\0\2" + (size(b"a") + b"a") * 2],
    "close_wait": [V2, SUB, b"CLS\n"],
    "message": [V2, SUB, b"PUB golden\n" + size(b"hello") + b"hello", b"RDY 1\n", b"CLS\n"],
    "error_invalid_command": [V2, b"FOO bar\n"],
    "error_bad_magic": [b"  V1", b"NOP\n"],
    "error_sub_bad_topic": [V2, b"SUB bad!t ch\n"],
    "error_sub_bad_channel": [V2, b"SUB golden bad!c\n"],
    "error_sub_no_channel": [V2, b"SUB golden\n"],
    "error_sub_twice": [V2, SUB, SUB],
    "error_sub_heartbeats_off": [V2 + identify(heartbeat_interval=-1), SUB],
    "error_identify_twice": [V2 + NEGOTIATE, SUB, NEGOTIATE],
    "error_identify_no_json": [V2 + b"IDENTIFY\n" + size(b"nope") + b"nope"],
    "error_identify_empty": [V2 + b"IDENTIFY\n\0\0\0\0"],
    "error_identify_heartbeat": [V2 + identify(heartbeat_interval=500)],
    "error_identify_msg_timeout": [V2 + identify(msg_timeout=999)],
    "error_identify_buffer_timeout": [V2 + identify(output_buffer_timeout=24)],
    "error_identify_sample_rate": [V2 + identify(sample_rate=100)],
    "error_identify_both_codecs": [V2 + identify(feature_negotiation=True, snappy=True, deflate=True)],
    "error_auth_disabled": [V2 + NEGOTIATE, b"AUTH\n" + size(b"s") + b"s"],
    "error_auth_empty": [V2 + NEGOTIATE, b"AUTH\n\0\0\0\0"],
    "error_pub_bad_topic": [V2, b"PUB bad!t\n" + size(b"x") + b"x"],
    "error_pub_empty": [V2, b"PUB golden_pub\n\0\0\0\0"],
    "error_pub_too_big": [V2, b"PUB golden_pub\n" + (1048577).to_bytes(4, "big")],
    "error_mpub_bad_topic": [V2, b"MPUB bad!t\n"],
    "error_mpub_no_messages": [V2, b"MPUB golden_pub\n\0\0\0\4\0\0\0\0"],
    "error_mpub_empty_message": [V2, b"MPUB golden_pub\n\0\0\0\x08\0\0\0\1\0\0\0\0"],
    "error_mpub_too_big": [V2, b"MPUB golden_pub\n" + (5242881).to_bytes(4, "big")],
    "error_dpub_too_late": [V2, b"DPUB golden_pub 3600001\n" + size(b"x") + b"x"],
    "error_dpub_negative": [V2, b"DPUB golden_pub -1\n" + size(b"x") + b"x"],
    "error_dpub_empty": [V2, b"DPUB golden_pub 1\n\0\0\0\0"],
    "error_rdy_before_sub": [V2, b"RDY 1\n"],
    "error_rdy_too_many": [V2, SUB, b"RDY 2501\n"],
    "error_rdy_negative": [V2, SUB, b"RDY -1\n"],
    "error_cls_before_sub": [V2, b"CLS\n"],
    "error_fin_before_sub": [V2, b"FIN " + ID + b"\n"],
    "error_fin_bad_id": [V2, SUB, b"FIN short\n"],
    "error_fin_failed": [V2, SUB, b"FIN " + ID + b"\n"],
    "error_req_failed": [V2, SUB, b"REQ " + ID + b" 0\n"],
    "error_touch_failed": [V2, SUB, b"TOUCH " + ID + b"\n"],
    "two_errors_that_leave_it_open": [V2, SUB, b"FIN " + ID + b"\n", b"TOUCH " + ID + b"\n", b"CLS\n"],
}


def attempts(port: int) -> bytes:
    """The same message three times: REQ 0 sends it again."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(V2 + b"SUB golden_req ch\nPUB golden_req\n" + size(b"again") + b"again" + b"RDY 1\n")
        got = read_for(sock, 0.3)
        for _ in range(2):
            sock.sendall(b"REQ " + got[-21:-5] + b" 0\n")
            got += read_for(sock, 0.3)
        sock.sendall(b"FIN " + got[-21:-5] + b"\nCLS\n")
        return got + read_for(sock, 0.3)


def compressed(port: int, **keys: object) -> bytes:
    """IDENTIFY's reply in plain; in the codec: its OK, a heartbeat, SUB's OK, two messages."""
    feed = [b"PUB golden_z\n" + size(body) + body for body in (b"first", b"second" * 100)]
    converse(port, [V2, b"SUB golden_z ch\n"])  # makes the channel
    converse(port, [V2, *feed], 0.1)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(V2 + identify(feature_negotiation=True, heartbeat_interval=1000, **keys))
        time.sleep(1.3)  # a heartbeat comes
        command = b"SUB golden_z ch\nRDY 2\n"
        if "snappy" in keys:
            plain = b"\0\0\0\0" + command
            sock.sendall(b"\xff\x06\0\0sNaPpY\x01" + len(plain).to_bytes(3, "little") + checksum(command) + command)
        else:
            codec = zlib.compressobj(6, zlib.DEFLATED, -15)
            sock.sendall(codec.compress(command) + codec.flush(zlib.Z_SYNC_FLUSH))
        return read_for(sock, 0.5)


def checksum(data: bytes) -> bytes:
    """Masked CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


@contextlib.contextmanager
def auth_server(status: int, answer: object) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def certificate(folder: str) -> tuple[str, str]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "golden")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    Path(folder, "cert.pem").write_bytes(made.public_bytes(pem))
    form = serialization.PrivateFormat.TraditionalOpenSSL
    Path(folder, "key.pem").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    return f"{folder}/cert.pem", f"{folder}/key.pem"


def capture_auth(program: str) -> None:
    permission = {"permissions": ["subscribe", "publish"], "topic": "allowed", "channels": [".*"]}
    good = {"ttl": 60, "identity": "golden", "identity_url": "http://golden.local", "authorizations": [permission]}
    auth = b"AUTH\n" + size(b"secret") + b"secret"
    cases: dict[str, tuple[int, object, list[bytes]]] = {
        "auth_reply": (200, good, [V2 + NEGOTIATE, auth, b"SUB allowed ch\n"]),
        "error_auth_first": (200, good, [V2 + NEGOTIATE, SUB]),
        "error_auth_first_pub": (200, good, [V2 + NEGOTIATE, b"PUB allowed\n" + size(b"x") + b"x"]),
        "error_unauthorized_sub": (200, good, [V2 + NEGOTIATE, auth, SUB]),
        "error_unauthorized_none": (200, {**good, "authorizations": []}, [V2 + NEGOTIATE, auth]),
        "error_auth_failed": (403, {}, [V2 + NEGOTIATE, auth]),
        "error_auth_twice": (200, good, [V2 + NEGOTIATE, auth, auth]),
    }
    for name, (status, answer, sent) in cases.items():
        with auth_server(status, answer) as address, nsqd(program, f"-auth-http-address={address}") as port:
            save(name, ("-auth-http-address=...",), sent, converse(port, sent, 0.5))


def main() -> None:
    program = sys.argv[1]
    with nsqd(program) as port:
        for name, sent in PLAIN.items():
            save(name, (), sent, converse(port, sent))
        beat = [V2 + identify(heartbeat_interval=1000)]
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(beat[0])
            time.sleep(1.3)
            save("heartbeat", (), beat, read_for(sock, 0.1))
        save(
            "message_attempts", (), [b"  V2, SUB, PUB, RDY 1", b"REQ id 0", b"REQ id 0", b"FIN id, CLS"], attempts(port)
        )
        for codec in ("snappy", "deflate"):
            told = [V2 + identify(feature_negotiation=True, heartbeat_interval=1000, **{codec: True})]
            told += [f"after 1.3 s, in {codec}: SUB golden_z ch, RDY 2".encode()]
            save(f"{codec}_stream", (), told, compressed(port, **{codec: True}))
    with nsqd(program, "-max-channel-consumers=1") as port, socket.create_connection(("127.0.0.1", port)) as first:
        first.sendall(V2 + SUB)
        read_for(first, 0.2)
        save("error_sub_failed", ("-max-channel-consumers=1",), [V2, SUB], converse(port, [V2, SUB]))
    with tempfile.TemporaryDirectory() as folder:
        cert, key = certificate(folder)
        with nsqd(program, f"-tls-cert={cert}", f"-tls-key={key}", "-tls-required=true") as port:
            flags = ("-tls-cert=... -tls-key=... -tls-required=true",)
            sent = [V2 + identify(feature_negotiation=True, tls_v1=True)]
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(sent[0])
                save("identify_tls", flags, sent, read_for(sock, 0.3))
            sent = [V2 + NEGOTIATE, SUB]
            save("error_tls_required", flags, sent, converse(port, sent))
    capture_auth(program)


if __name__ == "__main__":
    main()
