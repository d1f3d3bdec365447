"""`memfit completion`: the script by which a shell completes verbs, options and file names."""

from __future__ import annotations

import click

EPILOG = """\b
Put one of these into the start-up file of your shell:
  eval "$(memfit completion bash)"                  ~/.bashrc
  eval "$(memfit completion zsh)"                   ~/.zshrc, behind compinit
  memfit completion fish | source                   ~/.config/fish/config.fish

The script asks memfit itself, by the variable _MEMFIT_COMPLETE of click.
"""


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    root = context.find_root()
    if script is not None:
        click.echo(script(root.command, {}, "memfit", "_MEMFIT_COMPLETE").source())
