# Completion of offsetmgr for fish. Load it with: offsetmgr completion fish | source
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
