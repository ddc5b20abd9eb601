"""Draws the pictures of the pages.  ``python docs/images/draw.py`` writes them beside this file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from drawing import Drawing

from gnsq_lite.options import BackoffOptions


def reader() -> Drawing:
    """Draw a Reader, its connections and RDY."""
    d = Drawing(800, 330, "A Reader and its connections")
    d.lane(12, 12, 170, 306, "nsqds with the topic")
    d.lane(250, 12, 538, 306, "your process")
    for number, (name, ready) in enumerate((("nsqd A", 67), ("nsqd B", 67), ("nsqd C", 66))):
        y = 42 + number * 68
        d.box(30, y, 134, 50, name, "channel billing")
        d.box(272, y, 150, 50, "connection", f"RDY {ready}", colour="info")
        d.path(f"M272 {y + 25}L164 {y + 25}", "line", head="start end")
        d.path(f"M422 {y + 25}C 455 {y + 25} 450 135 484 135", "info", head="end")
    d.box(30, 252, 134, 50, "nsqlookupd", "who has the topic?", dashed=True)
    d.box(272, 252, 150, 50, "discovery", "asks every 60 to 78 s", dashed=True)
    d.path("M272 277L164 277", "line", dashed=True, head="end")
    d.box(486, 100, 130, 70, "queue", "max_in_flight = 200", "in all")
    for number in range(3):
        y = 58 + number * 56
        d.box(668, y, 104, 42, "your handler", colour="good")
        d.path(f"M616 135C 645 135 640 {y + 21} 668 {y + 21}", "good", head="end")
    d.text(720, 240, "concurrency = 3", "soft", "middle")
    d.text(440, 282, "The sum of RDY never passes max_in_flight.", "soft")
    d.text(440, 302, "Heartbeats are answered whatever handlers do.", "soft")
    return d


def message() -> Drawing:
    """Draw what can become of a message."""
    d = Drawing(800, 400, "The life of a message")
    d.box(20, 30, 130, 54, "in nsqd's queue")
    d.box(230, 30, 150, 54, "in flight", "in the Reader's queue", colour="info")
    d.box(470, 30, 140, 54, "in your handler", "attempts 1, 2, 3 ...", colour="info")
    d.arrow(150, 57, 230, 57, "RDY > 0")
    d.arrow(380, 57, 470, 57, "a free thread")
    d.path("M520 30C 520 2 560 2 560 28", "line", head="end")
    d.text(572, 16, "touch(): more time", "soft")
    d.box(650, 150, 130, 54, "FIN", "nsqd forgets it", colour="good")
    d.path("M610 57C 690 57 715 90 715 148", "good", head="end")
    d.text(642, 84, "returns", colour="good")
    d.box(455, 150, 170, 54, "more than", "max_attempts?")
    d.path("M540 84L540 148", "warn", head="end")
    d.text(548, 122, "raises", colour="warn")
    d.box(455, 262, 170, 54, "on_give_up", "log, directory, topic")
    d.path("M540 204L540 260", "line", head="end")
    d.text(548, 238, "yes", "soft")
    d.path("M625 289C 690 289 715 255 715 206", "good", head="end")
    d.text(640, 312, "returns", colour="good")
    d.box(240, 150, 130, 54, "REQ, delay", "and backoff", colour="warn")
    d.path("M455 177L372 177", "warn", head="end")
    d.text(413, 169, "no", "soft", "middle")
    d.path("M455 289C 340 289 305 255 305 206", "warn", dashed=True, head="end")
    d.text(392, 308, "raises", colour="warn", anchor="middle")
    d.path("M240 177C 110 177 85 140 85 86", "warn", head="end")
    d.text(150, 196, "after 90 s, later each time", "soft", "middle")
    d.path("M280 84C 262 122 190 118 122 86", "line", dashed=True, head="end")
    d.text(300, 112, "msg_timeout is over", "soft")
    d.lane(20, 340, 760, 46)
    d.text(
        36, 368, "close(): what waits in the queue goes back at once (REQ 0); what is in a handler may finish.", "soft"
    )
    return d


def backoff() -> Drawing:
    """Draw RDY while handlers fail and recover; the pauses are those of the default options."""
    options = BackoffOptions()
    d = Drawing(800, 300, "Backoff over time")
    left, base, top, second = 70, 210, 60, 48.0
    d.path(f"M{left} {base}L770 {base}", "line", head="end")
    d.path(f"M{left} {base + 2}L{left} 38", "line", head="end")
    d.text(770, base + 18, "time", "soft", "end")
    d.text(left - 8, top + 4, "200", "soft", "end")
    d.text(left - 8, base - 14, "1", "soft", "end")
    d.text(left - 8, base + 4, "0", "soft", "end")
    d.text(left + 8, 34, "RDY over all connections", "soft")
    line, x, level = f"M{left} {top}", left + 60.0, 0
    for fails in (True, True, True, False, False, False):
        line += f"L{x:g} {top if level == 0 else base - 18}"
        level += 1 if fails else -1
        d.text(x, base + 18, "fails" if fails else "works", "soft", "middle", "warn" if fails else "good")
        if level == 0:
            break
        pause = options.unit * 2 ** (level - 1) * second
        line += f"L{x:g} {base}L{x + pause:g} {base}L{x + pause:g} {base - 18}"
        d.add(
            f'<rect x="{x:g}" y="{top + 6}" width="{pause:g}" height="{base - top - 6}" '
            'style="fill:var(--warn-soft);opacity:.7"/>'
        )
        d.text(x + pause / 2, base - 90, f"{options.unit * 2 ** (level - 1):g} s", "soft", "middle")
        x += pause + 16
    d.path(line + f"L{x:g} {top}L760 {top}", "info", 2.2)
    d.lane(20, 246, 760, 42)
    d.text(
        36, 272, "Paused: RDY 0 everywhere.  Then one message on one connection decides: down a level, or up.", "soft"
    )
    return d


def drain() -> Drawing:
    """Draw what happens between SIGTERM and the end of a worker's process."""
    d = Drawing(800, 330, "Drain on SIGTERM")
    begin, term, end = 130, 250, 610
    rows = ("supervisor", "connection", "handler 1", "handler 2", "queued messages", "nsqd")
    for number, name in enumerate(rows):
        y = 48 + number * 42
        d.lane(12, y, 776, 34)
        d.text(24, y + 22, name, "soft")

    def bar(row: int, x1: float, x2: float, text: str, colour: str) -> None:
        y = 48 + row * 42 + 5
        d.add(
            f'<rect x="{x1:g}" y="{y}" width="{x2 - x1:g}" height="24" rx="6" '
            f'style="fill:var(--{colour}-soft);stroke:var(--{colour})"/>'
        )
        d.text((x1 + x2) / 2, y + 16, text, "soft", "middle")

    d.path(f"M{term} 36L{term} 300", "warn", 1.8, dashed=True)
    d.text(term, 28, "SIGTERM", "bold", "middle", "warn")
    d.path(f"M{end} 36L{end} 300", "good", 1.8, dashed=True)
    d.text(end, 28, "exit code 0", "bold", "middle", "good")
    bar(0, begin, 780, "passes SIGTERM on, waits for its processes", "info")
    bar(1, begin, term, "RDY 200", "info")
    bar(1, term + 6, end, "RDY 0, CLS; still answers heartbeats", "info")
    bar(2, 180, 430, "finishes its message: FIN", "good")
    bar(3, 205, end, "finishes its message: FIN", "good")
    bar(4, begin + 30, term, "wait", "warn")
    bar(4, term + 6, 440, "go back at once: REQ 0", "warn")
    bar(5, 446, 780, "gives them to another consumer", "good")
    d.path("M440 233C 446 250 440 262 462 268", "warn", head="end")
    d.path(f"M{term + 44} 24L{end - 52} 24", "line", head="start end")
    d.text((term + end) / 2, 18, "drain_timeout at most: 30 s", "soft", "middle")
    d.text(
        400,
        322,
        "A second SIGTERM, or the end of the time: exit code 3, and what was cut short goes back too.",
        "soft",
        "middle",
    )
    return d


def spark() -> Drawing:
    """Draw the Spark source with its spool."""
    d = Drawing(800, 350, "The Spark source with its spool")
    d.box(16, 118, 110, 60, "nsqd", "topic/channel")
    d.lane(168, 16, 420, 200, "driver: the source's process")
    d.box(186, 118, 112, 60, "Reader", "TLS, AUTH ...", colour="info")
    d.box(330, 118, 112, 60, "open segment", "one Arrow batch", colour="info")
    d.box(472, 118, 100, 60, "fsync", "then FIN", colour="good")
    d.arrow(126, 148, 186, 148, "")
    d.arrow(298, 148, 330, 148)
    d.arrow(442, 148, 472, 148)
    d.path("M522 118C 522 60 120 50 76 116", "good", head="end")
    d.text(300, 62, "FIN only for what is on disk", "soft", "middle", "good")
    d.lane(168, 232, 420, 100, "recording: a directory or an object store")
    for number in range(4):
        committed = number == 0
        d.box(
            186 + number * 98, 262, 86, 52, f"segment {number + 7}", "done" if committed else "sealed", dashed=committed
        )
    d.path("M522 178L522 260", "good", head="end")
    d.lane(624, 16, 164, 316, "executors")
    for number in range(3):
        y = 46 + number * 66
        d.box(642, y, 128, 48, "task", "maps a segment", colour="info")
        d.path(f"M588 282C 612 282 610 {y + 24} 642 {y + 24}", "info", head="end")
    d.box(642, 256, 128, 56, "your sink", "batch id", colour="good")
    d.path("M706 226L706 254", "good", head="end")
    d.text(16, 262, "offset = number", "soft")
    d.text(16, 279, "of a segment:", "soft")
    d.text(16, 296, "a batch that runs", "soft")
    d.text(16, 313, "again has the", "soft")
    d.text(16, 330, "same rows", "soft")
    return d


def design() -> Drawing:
    """Draw the packages, each above those it stands on."""
    d = Drawing(800, 470, "The packages of gnsq_lite")
    d.lane(12, 10, 776, 66, "what you use")
    for y in (100, 206, 312):
        d.lane(12, y, 776, 92)
    for x, names in ((130, "Reader"), (240, "Writer")):
        d.box(x, 22, 100, 42, names, colour="good")
    for x, w, name in ((356, 94, "worker/"), (462, 94, "spark/"), (568, 94, "contrib/"), (674, 100, "cli/")):
        d.box(x, 22, w, 42, name)
    d.path("M180 64L180 116", "line", head="end")
    d.path("M290 64C 290 96 440 82 480 116", "line", head="end")
    d.box(30, 118, 340, 60, "consume/", "subscribed connections, flow control, pools, answers", colour="info")
    d.box(392, 118, 340, 60, "publish/", "answer queue, coalescing, rotation, partition leaders", colour="info")
    d.path("M200 178L200 222", "line", head="end")
    d.path("M520 178L520 222", "line", head="end")
    d.box(
        30,
        224,
        520,
        60,
        "net/",
        "loop and I/O thread, stream, connection, link, discovery, signals, forks",
        colour="info",
    )
    d.box(572, 224, 198, 60, "http/", "clients of nsqd, nsqlookupd")
    d.path("M550 254L570 254", "line", head="end")
    d.box(30, 330, 170, 60, "wire/", "bytes to events and back", colour="warn")
    d.box(216, 330, 170, 60, "policy/", "RDY, backoff, retries", colour="warn")
    d.box(402, 330, 180, 60, "dialect, youzan/", "plain NSQ or Youzan's", colour="warn")
    d.box(598, 330, 172, 60, "_core", "C, or the same in Python", colour="warn")
    for x in (115, 300, 490):
        d.path(f"M{x} 284L{x} 328", "line", head="end")
    d.text(
        400, 428, "Blue does I/O with gevent.  Yellow does none: clock and randomness are arguments.", "soft", "middle"
    )
    d.text(
        400,
        448,
        "An arrow points to what is imported.  consume/ and publish/ do not know each other.",
        "soft",
        "middle",
    )
    return d


def publish() -> Drawing:
    """Draw the way of a publish from a plain thread, and the loop's part in it."""
    d = Drawing(800, 350, "The life of a publish")
    d.lane(12, 12, 400, 190, "your threads")
    d.lane(12, 216, 590, 120, "the I/O loop")
    d.lane(618, 12, 170, 324, "nsqd")
    d.box(28, 42, 158, 56, "1  Writer.publish()", "checks names and sizes", colour="good")
    d.box(28, 128, 158, 56, "5  outcome", "OK, refused, not sent ...", colour="good")
    d.box(232, 42, 164, 56, "2  Pool", "lends a connection")
    d.box(428, 42, 174, 142, "BlockingConnection", "sends the command,", "reads its answer", colour="info")
    d.box(634, 42, 138, 56, "3  PUB", "read in order")
    d.box(634, 128, 138, 56, "4  OK or error", "in the same order")
    d.arrow(186, 70, 232, 70)
    d.arrow(396, 70, 428, 70)
    d.arrow(602, 70, 634, 70)
    d.arrow(634, 156, 602, 156, colour="good")
    d.path("M428 156L188 156", "good", head="end")
    d.text(308, 148, "settled exactly once", "soft", "middle")
    d.box(28, 240, 158, 66, "Producer", "finds nsqds, opens,", "sends again")
    d.box(232, 240, 164, 66, "Pipelined", "one connection per nsqd,", "many unanswered", colour="info")
    d.box(428, 240, 158, 66, "AnswerQueue", "what an answer, or a", "loss, means", colour="info")
    d.arrow(186, 273, 232, 273)
    d.arrow(396, 273, 428, 273)
    d.text(300, 318, "send again", "soft", "middle")
    d.path("M507 306L507 322L107 322L107 308", "line", head="end")
    d.text(322, 214, "no plain thread, or all connections are in use", "soft", "middle")
    d.path("M210 98L210 224L107 224L107 238", "line", dashed=True, head="end")
    return d


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "drawn-reader.svg": reader,
    "drawn-message.svg": message,
    "drawn-backoff.svg": backoff,
    "drawn-drain.svg": drain,
    "drawn-spark.svg": spark,
    "drawn-design.svg": design,
    "drawn-publish.svg": publish,
}


def main() -> None:
    """Write all of them."""
    for name, made in DRAWINGS.items():
        (Path(__file__).parent / name).write_text(made().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
