"""``plm serve RUN``: a page and an API on this machine; ``plm serve tokens``: who may use them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class _RunOrCommand(TyperGroup):
    """``plm serve RUN`` is ``plm serve start RUN``: a word that is not a command is a run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command's name before a run or an option of its own."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["start", *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Write how a run is served; the other commands are listed below."""
        del ctx
        return ["RUN [OPTIONS]"]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the arguments and options of serving as those of the group, which they look like to a user."""
        own, start = (self.params, self.help), self.commands["start"]
        self.params, self.help = [*start.params, *own[0]], start.help
        try:
            super().format_help(ctx, formatter)
        finally:
            self.params, self.help = own


serve_app = typer.Typer(
    cls=_RunOrCommand,
    no_args_is_help=True,
    help="Serve a run on this machine: pages for clinicians, an API, CDS Hooks. [bold]plm serve RUN --cohort TODAY[/]",
)
tokens_app = typer.Typer(no_args_is_help=True, help="Named tokens: who may read, ask what-if and send records.")
serve_app.add_typer(tokens_app, name="tokens")

TokenFileOption = Annotated[
    Path | None, typer.Option("--tokens", help="The file of named tokens; default: in the user's data folder.")
]


@serve_app.command("start", hidden=True)
def start(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    cohort: Annotated[Path | None, typer.Option(help="The cohort of today's patients; they become the list.")] = None,
    trained_on: Annotated[
        Path | None, typer.Option("--trained-on", help="Where the run's own cohort is now, if it has moved.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port; 0 chooses a free one.", min=0, max=65535)] = 8765,
    host: Annotated[str, typer.Option(help="The address to listen on; others than this machine need a proxy.")] = (
        "127.0.0.1"
    ),
    behind_proxy: Annotated[
        str | None,
        typer.Option(
            "--behind-proxy", help="The public host name of a TLS proxy with sign-on in front; see docs/serve.md."
        ),
    ] = None,
    show_ids: Annotated[
        bool, typer.Option("--show-ids", help="Show patient ids in the list, and search by them.")
    ] = False,
    access_log: Annotated[
        Path | None, typer.Option("--access-log", help="Who looked at whom; default: in the user's data folder.")
    ] = None,
    tokens: TokenFileOption = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the computation; default: all cores.")] = None,
) -> None:
    """Serve a run on this machine.

    The printed address holds a token of this start; it becomes a cookie. Nothing leaves the machine.

    Examples:
        plm serve runs/vem --cohort todays-cohort

        plm serve tokens add ward-3 --role read --role what-if

    """
    from patients_like_me.errors import PlmError

    try:
        from patients_like_me.serve.server import serve
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise PlmError(
            "the server needs packages that are not installed",
            remedy="install them with: pip install --constraint constraints.txt '.[serve]'",
        ) from None

    serve(
        run,
        cohort=cohort,
        trained_on=trained_on,
        host=host,
        port=port,
        behind_proxy=behind_proxy,
        show_ids=show_ids,
        access_log=access_log,
        token_file=tokens,
        threads=threads,
        say=_say,
    )


def _say(line: str) -> None:
    """Print a line at once, also where it goes into a pipe."""
    import sys

    typer.echo(line)
    sys.stdout.flush()


@tokens_app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Who it is for; the access log names it.")],
    role: Annotated[list[str] | None, typer.Option(help="read, what-if or upload; repeatable. Default: read.")] = None,
    tokens: TokenFileOption = None,
) -> None:
    """Make a token and print it once; its hash alone is kept.

    Example:
        plm serve tokens add ward-3 --role read --role what-if

    """
    from patients_like_me.serve.access import TokenFile, default_token_file

    token = TokenFile(tokens or default_token_file()).add(name, role or ["read"])
    typer.echo(token)
    typer.echo("Give it to its holder now: it is not shown again.", err=True)


@tokens_app.command("list")
def list_tokens(tokens: TokenFileOption = None) -> None:
    """List the named tokens with their roles."""
    from patients_like_me.serve.access import TokenFile, default_token_file

    found = TokenFile(tokens or default_token_file()).tokens()
    for token in found:
        typer.echo(f"{token.name}\t{', '.join(token.roles)}\tsince {token.created[:10]}")
    if not found:
        typer.echo("no named tokens; add one with: plm serve tokens add NAME", err=True)


@tokens_app.command("remove")
def remove(name: Annotated[str, typer.Argument(help="The name of the token.")], tokens: TokenFileOption = None) -> None:
    """Remove a token; its sessions end with their next request."""
    from patients_like_me.serve.access import TokenFile, default_token_file

    TokenFile(tokens or default_token_file()).remove(name)
    typer.echo(f"removed: {name}")
