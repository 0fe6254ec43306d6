"""Scripts of completion for bash, zsh and fish, with every word in them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bgn_lab.commands.parsing import Option

if TYPE_CHECKING:
    from bgn_lab.commands.completion import Words

HELP = Option(("--help",), "help", takes="none", help="what it does, and all options")

# Both know, then: $line, the words before the cursor; $option, the last option among them, and
# $far, how many words ago that was. They choose $options, and what $option takes.
BASH = """\
# completion of `bgn` for bash, printed by `bgn completion bash`
_bgn() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} line=" ${{COMP_WORDS[*]:1:COMP_CWORD-1}} " option="" far=0 i
  local options="" values="" kind="none"
  for ((i = COMP_CWORD - 1; i > 0; i--)); do
    if [[ ${{COMP_WORDS[i]}} == --* ]]; then
      option=${{COMP_WORDS[i]}} far=$((COMP_CWORD - i)); break
    fi
  done
{cases}
  if [[ $kind == *one && $far -gt 1 ]]; then kind=none; fi
  if [[ $cur == -* || $kind == none ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
  elif [[ $kind == files-* ]]; then
    compopt -o filenames 2> /dev/null
    local IFS=$'\\n'
    COMPREPLY=($(compgen -f -- "$cur"))
  else
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
  fi
}}
complete -F _bgn bgn
"""
ZSH = """\
#compdef bgn
# completion of `bgn` for zsh, printed by `bgn completion zsh`
_bgn() {{
  local cur=${{words[CURRENT]}} line=" ${{words[2,CURRENT-1]}} " option="" far=0 i
  local options="" values="" kind="none"
  for ((i = CURRENT - 1; i > 1; i--)); do
    if [[ ${{words[i]}} == --* ]]; then
      option=${{words[i]}} far=$((CURRENT - i)); break
    fi
  done
{cases}
  if [[ $kind == *one && $far -gt 1 ]]; then kind=none; fi
  if [[ $cur == -* || $kind == none ]]; then
    compadd -- ${{=options}}
  elif [[ $kind == files-* ]]; then
    _files
  else
    compadd -- ${{=values}}
  fi
}}
if (( $+functions[compdef] )); then compdef _bgn bgn; fi
"""
FISH = """\
# completion of `bgn` for fish, printed by `bgn completion fish`
function __bgn_words --description 'Words after bgn and before the cursor'
    set -l words (commandline -opc)
    string join ' ' -- $words[2..-1]
end
function __bgn_is
    test "$(__bgn_words)" = "$argv[1]"
end
function __bgn_in
    string match -q -- "$argv[1] *" "$(__bgn_words) "
end
complete -c bgn -f
"""


def bash(commands: Mapping[str, Words]) -> str:
    """The script for bash."""
    return BASH.format(cases=_cases(commands))


def zsh(commands: Mapping[str, Words]) -> str:
    """The script for zsh."""
    return ZSH.format(cases=_cases(commands))


def fish(commands: Mapping[str, Words]) -> str:
    """The script for fish, which shows what each word means."""
    lines = [FISH.rstrip()]
    for start, following in _starts(commands).items():
        for word in following:
            name = f"{start} {word}".strip()
            about = commands[name].summary if name in commands else f"bgn {name} --help"
            lines.append(_fish(f"__bgn_is {_quoted(start)}", f"-a {word}", about))
    for name, words in commands.items():
        where = f"__bgn_in {_quoted(name)}"
        if words.positional:
            lines.append(_fish(f"__bgn_is {_quoted(name)}", f"-a {_listed(words.positional)}", ""))
        elif name == "report":
            lines.append(_fish(where, "-F", ""))
        for option in (*words.options, HELP):
            takes = {"none": "", "path": " -r -F"}.get(
                "none" if option.takes == "none" else option.kind, " -x"
            )
            values = f" -a {_listed(option.values)}" if option.values else ""
            shown = [f"-l {word[2:]}{takes}{values}" for word in option.names]
            lines += [_fish(where, what, option.help) for what in shown]
    return "\n".join(lines) + "\n"


def _fish(where: str, what: str, about: str) -> str:
    told = f" -d {_quoted(about)}" if about else ""
    return f"complete -c bgn -n {_quoted(where)} {what}{told}"


def _quoted(text: str) -> str:
    """For fish.

    >>> print(_quoted("the paper's"))
    'the paper\\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _listed(values: Iterable[str]) -> str:
    return _quoted(" ".join(values))


def _starts(commands: Mapping[str, Words]) -> dict[str, list[str]]:
    """What can follow nothing, and the first word of commands of two.

    >>> _starts(dict.fromkeys(["info", "data get", "data list"]))
    {'': ['info', 'data'], 'data': ['get', 'list']}
    """
    found: dict[str, list[str]] = {"": []}
    for name in commands:
        first, _, second = name.partition(" ")
        if first not in found[""]:
            found[""].append(first)
        if second:
            found.setdefault(first, []).append(second)
    return found


def _cases(commands: Mapping[str, Words]) -> str:
    """For bash and zsh: options by command, and what each option takes."""
    lines = ['  case "$line" in']
    for start, following in _starts(commands).items():
        pattern = f" {start} " if start else "  "
        lines.append(f'    "{pattern}") options={shlex.quote(" ".join(following))} ;;')
    for name, words in commands.items():
        names = [word for option in (*words.options, HELP) for word in option.names]
        listed = shlex.quote(" ".join((*words.positional, *names)))
        lines += [f'    " {name} "*)', f"      options={listed}"]
        if name == "report":
            lines.append("      kind=files-several")
        lines += ['      case "$option" in', *_kinds(words), "      esac ;;"]
    return "\n".join([*lines, "  esac"])


def _kinds(words: Words) -> list[str]:
    """Cases that tell what options take; those of the same kind share one."""
    same: dict[str, list[str]] = {}
    for option in (*words.options, HELP):
        if option.takes == "none":
            made = "kind=none"
        elif option.kind == "path" and not option.values:
            made = f"kind=files-{option.takes}"
        else:
            made = f"kind=values-{option.takes} values={shlex.quote(' '.join(option.values))}"
        same.setdefault(made, []).extend(option.names)
    return [f"        {'|'.join(names)}) {made} ;;" for made, names in same.items()]
