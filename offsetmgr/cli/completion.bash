# Completion of offsetmgr for bash 4 and later. Load it with: source <(offsetmgr completion bash)
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
