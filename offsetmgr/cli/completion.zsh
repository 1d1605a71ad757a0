#compdef offsetmgr
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
