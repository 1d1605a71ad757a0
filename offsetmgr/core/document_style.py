"""The style sheet of HTML documents, for light and dark themes and for windows of any width."""

from __future__ import annotations

from typing import Final

COLOURS: Final = 6
"""Maximum number of distinguishable lines in a plot. The style sheet has a colour for each line."""
STYLE: Final = """
:root{--ink:#1c2430;--dim:#5d6b7c;--rule:#dbe1e8;--paper:#fff;--c0:#2563a8;--c1:#c2571a;--c2:#2e8540;--c3:#8a3ea8;
--c4:#a8862b;--c5:#c0364c}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9ef;--dim:#9aa7b5;--rule:#36414d;--paper:#151b22;--c0:#6ea8e6;
--c1:#ec9560;--c2:#73c285;--c3:#c08bdb;--c4:#d9ba63;--c5:#ee7f90}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.5rem 0 .5rem;overflow-wrap:anywhere}
h3,h4{font-size:1.02rem;margin:1.75rem 0 .35rem;overflow-wrap:anywhere}h4{font-size:.95rem}
pre{margin:.5rem 0 .75rem;padding:.6rem .75rem;border:1px solid var(--rule);border-radius:4px;white-space:pre-wrap;
overflow-wrap:anywhere;font:.85rem/1.45 ui-monospace,monospace}
pre.sh{border-left:4px solid var(--c0)}pre.text{color:var(--dim);border-style:dashed}
ul{margin:.25rem 0 .75rem;padding-left:1.25rem}li{overflow-wrap:anywhere}
.boxes{list-style:none;padding-left:0}.boxes li{padding-left:1.6em;text-indent:-1.6em}
.boxes li::before{content:"";display:inline-block;width:.95em;height:.95em;margin-right:.65em;vertical-align:-.1em;
border:1.5px solid var(--dim);border-radius:2px}
.blanks{display:flex;flex-wrap:wrap;gap:.75rem 1.5rem;margin:1rem 0 1.25rem}
.blanks span{flex:1 1 9rem;border-bottom:1px solid var(--dim);padding-bottom:1.4rem;font-size:.85rem}
table+p{margin-top:.9rem}
p{margin:.25rem 0 .75rem;color:var(--dim);overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.75rem;margin:1.25rem 0}
dl div{border-top:2px solid var(--rule);padding-top:.4rem}dt{color:var(--dim);font-size:.85rem}
dd{margin:0;font-size:1.35rem;line-height:1.25;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:0 2.5rem}
svg{display:block;width:100%;height:auto}svg text{font-size:15px;fill:var(--dim)}
.grid{stroke:var(--rule);fill:none}.line{fill:none;stroke-width:2.5;stroke-linejoin:round}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;margin:.25rem 0;font-size:.9rem}
.legend li{display:flex;align-items:baseline;gap:.4em;min-width:0;overflow-wrap:anywhere}
.legend li::before{content:"";flex:none;width:.8em;height:.8em;background:currentColor}
table{border-collapse:collapse;width:100%;font-size:.93rem}
th,td{text-align:left;padding:.3rem 0;border-bottom:1px solid var(--rule);vertical-align:top;font-weight:400}
th+th,th+td,td+td{padding-left:1rem}
.name{overflow-wrap:anywhere;min-width:9em}.time{white-space:nowrap;font-variant-numeric:tabular-nums}
.code{font:.85em/1.5 ui-monospace,monospace;overflow-wrap:anywhere}
thead th{color:var(--dim);font-size:.85rem;vertical-align:bottom}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}thead .number{white-space:normal}
.bars th{width:35%}.bars .number{width:1%}.bars svg{height:1rem;margin-top:.25rem}
@media(max-width:760px){
.plots{display:block}svg text{font-size:20px}h1{font-size:1.35rem}
.bars tr{display:grid;grid-template-columns:minmax(0,1fr) 10rem;border-bottom:1px solid var(--rule);padding:.3rem 0}
.bars th{grid-column:1/-1;width:auto}.bars th,.bars td{border:0;padding-top:0;padding-bottom:0}
.bars td.bar{padding-left:0;width:auto}.bars .number{width:auto}
.few thead,.few tbody{display:block}
.few tr{display:grid;grid-template-columns:repeat(var(--n),minmax(0,1fr));gap:0 .5rem;
border-bottom:1px solid var(--rule);padding:.3rem 0}
.few th,.few td{border:0;padding:0;white-space:normal;overflow-wrap:anywhere}.few .name{grid-column:1/-1}
.many,.many tbody,.many tr,.many td{display:block}.many thead{display:none}
.many tr{border-bottom:1px solid var(--rule);padding:.4rem 0}
.many td{border:0;padding:.05rem 0;text-align:left;white-space:normal;overflow-wrap:anywhere}
.many td+td{padding-left:0}.many td+td::before{content:attr(data-name) ": ";color:var(--dim)}
}
@media print{body{max-width:none}pre,.blanks,tr{break-inside:avoid}h2,h3,h4{break-after:avoid}}
""" + "".join(
    f".line.c{n}{{stroke:var(--c{n})}}rect.c{n},circle.c{n}{{fill:var(--c{n})}}li.c{n}::before{{color:var(--c{n})}}\n"
    for n in range(COLOURS)
)
