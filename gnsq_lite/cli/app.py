"""The command group ``gnsq-lite``.  It prints an error as one line, and exits with a code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from gnsq_lite.cli.hints import in_flags
from gnsq_lite.errors import InvalidName, NSQError, OptionError
from gnsq_lite.supervise.exit_codes import ExitCode
from gnsq_lite.version import __version__

#: Name of a command -> ("module" or "module:attribute" of the click.Command, one line of help).
COMMANDS: dict[str, tuple[str, str]] = {
    "broker": ("gnsq_lite.cli.broker", "Run an nsqd and an nsqlookupd in memory, for tests and demos."),
    "dead": ("gnsq_lite.cli.dead", "List, show, retry and drop dead letters."),
    "demo": ("gnsq_lite.cli.demo", "Publish lines of text, consume them, and check that none was lost."),
    "topic": ("gnsq_lite.cli.admin:topic", "Create, delete, empty, pause, unpause a topic on all nodes."),
    "channel": ("gnsq_lite.cli.admin:channel", "Create, delete, empty, pause, unpause a channel on all nodes."),
    "node": ("gnsq_lite.cli.admin:node", "Tombstone an nsqd for a topic, or drain an nsqd."),
    "channels": ("gnsq_lite.cli.lists:channels", "List the channels of a topic."),
    "nodes": ("gnsq_lite.cli.lists:nodes", "List the nsqds registered at the nsqlookupds."),
    "outbox": ("gnsq_lite.cli.outbox", "Publish the messages that transactions stored in an outbox."),
    "pub": ("gnsq_lite.cli.pub", "Publish lines of files or standard input."),
    "doctor": ("gnsq_lite.cli.doctor", "List the changes that a program for pynsq or gnsq needs."),
    "record": ("gnsq_lite.cli.record", "Record the messages of a channel in a durable log."),
    "recording": ("gnsq_lite.cli.recording", "List, verify, trim and retire the logs of a recording."),
    "replay": ("gnsq_lite.cli.replay", "Publish the messages of a recording again."),
    "running": ("gnsq_lite.cli.running", "List the running handler calls of a worker, the oldest first."),
    "stat": ("gnsq_lite.cli.stat", "Show depth, rates and clients of every channel, live."),
    "tail": ("gnsq_lite.cli.tail", "Print the messages of a topic as they arrive."),
    "topics": ("gnsq_lite.cli.lists:topics", "List the topics registered at the nsqlookupds."),
    "worker": ("gnsq_lite.cli.worker", "Run the handlers of a Worker in supervised processes."),
}


class LazyGroup(click.Group):
    """Group that imports the module of a command when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command *cmd_name*."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command.  Return 0 if the reader of the output has closed the pipe; click would return 1."""
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            return 0
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(COMMANDS.items())])


def _drop_output() -> None:
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gnsq-lite")
@click.option("--patch", is_flag=True, help="Monkey-patch with gevent before anything is imported.")
def main(patch: bool) -> None:
    """NSQ from the command line.  `gnsq-lite COMMAND --help` lists the options of a command.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the program, print an error as one line on standard error, and return the exit code."""
    try:
        result = main.main(args=arguments, prog_name="gnsq-lite", standalone_mode=False)
    except click.exceptions.Abort:
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (OptionError, InvalidName) as error:
        print(f"gnsq-lite: {in_flags(error)}", file=sys.stderr)
        return ExitCode.USAGE
    except NSQError as error:
        print(f"gnsq-lite: {in_flags(error)}", file=sys.stderr)
        return ExitCode.FAILED
    except OSError as error:  # for example, a directory is not writable or a port is in use
        print(f"gnsq-lite: {error}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except (OSError, AttributeError):  # standard output failed; the interpreter would flush it again at exit
            _drop_output()
        return ExitCode.FAILED
    return result if isinstance(result, int) else 0
