"""The completion scripts of bash, zsh and fish.

Each script calls ``offsetmgr __complete SHELL`` and reads lines. The first line is ``files`` if the shell completes
names of files, else ``words``. Each further line is one completion; zsh and fish also get a description after a tab. No
script evaluates a completion as shell code, because clients choose the names of groups.
"""

from __future__ import annotations

from typing import Final

BASH: Final = r"""# Completion of offsetmgr for bash 4 and later. Load it with: source <(offsetmgr completion bash)
_offsetmgr() {
    local kind line
    COMPREPLY=()
    {
        IFS= read -r kind
        while IFS= read -r line; do
            COMPREPLY+=("$line")
        done
    } < <("${COMP_WORDS[0]}" __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null </dev/null)
    if [[ $kind == files ]]; then
        compopt -o default 2>/dev/null
    fi
}
complete -F _offsetmgr offsetmgr
"""

ZSH: Final = r"""#compdef offsetmgr
# Completion of offsetmgr for zsh. Load it after compinit with: source <(offsetmgr completion zsh)
_offsetmgr() {
    local kind line
    local -a lines values described
    lines=("${(@f)$(${(Q)words[1]} __complete zsh "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null </dev/null)}")
    kind=$lines[1]
    if [[ $kind == files ]]; then
        _files
        return
    fi
    for line in "${(@)lines[2,-1]}"; do
        values+=("${line%%$'\t'*}")
        if [[ $line == *$'\t'* ]]; then
            described+=("${line%%$'\t'*}  -- ${line#*$'\t'}")
        else
            described+=("$line")
        fi
    done
    (( $#values )) || return 1
    if [[ "$described" == "$values" ]]; then
        compadd -a values
    else
        compadd -l -d described -a values
    fi
}
if [[ $funcstack[1] == _offsetmgr ]]; then
    _offsetmgr "$@"
else
    compdef _offsetmgr offsetmgr
fi
"""

FISH: Final = r"""# Completion of offsetmgr for fish. Load it with: offsetmgr completion fish | source
function __offsetmgr_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines (command $words[1] __complete fish $words "$current" 2>/dev/null </dev/null)
    if test "$lines[1]" = files
        __fish_complete_path "$current"
    else if set -q lines[2]
        printf '%s\n' $lines[2..-1]
    end
end
complete -c offsetmgr -e
complete -c offsetmgr -f -a '(__offsetmgr_complete)'
"""
