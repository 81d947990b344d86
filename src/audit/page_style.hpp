// SPDX-License-Identifier: Apache-2.0
// The style sheet of audit.html: light or dark as the reader's system asks, one column on a phone.
#pragma once

namespace saturate::audit {

inline constexpr const char* kPageStyle = R"css(
:root{color-scheme:light dark;--bg:#f4f5f7;--card:#fff;--ink:#17202b;--soft:#5a6675;--line:#e1e5ea;--track:#edf0f3;
--base:#8492a4;--good:#0a7d5a;--goodbg:#e1f3eb;--bad:#bd4b1f;--badbg:#fbe9e1;--accent:#2f5fd0;--hero:#0d3b34;
--heroink:#f2fbf7;
--herosoft:#b5d6cb;--code:#f1f3f6}
@media (prefers-color-scheme:dark){:root{--bg:#0f1318;--card:#181e25;--ink:#e6eaef;--soft:#9aa6b4;--line:#2a323c;
--track:#232b34;
--base:#8090a3;--good:#45cf9f;--goodbg:#12372c;--bad:#f4935f;--badbg:#402416;--accent:#7aa2ff;--hero:#0f2f2a;
--heroink:#eafaf3;
--herosoft:#9cc5b7;--code:#10151b}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1040px;margin:0 auto;padding:28px 20px 64px}
header h1{font-size:1.35rem;line-height:1.25;margin:0}
header p{margin:4px 0 0;color:var(--soft);font-size:.95rem}
h2{font-size:1.2rem;margin:44px 0 4px;letter-spacing:-.01em}
h3{font-size:1rem;margin:0}
.lead{color:var(--soft);margin:0 0 14px;max-width:68ch}
.card{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:18px 20px}
.hero{background:var(--hero);color:var(--heroink);border-radius:18px;padding:30px 32px;margin-top:20px;display:flex;
gap:12px 36px;
flex-wrap:wrap;align-items:center}
.hero .big{font-size:clamp(3.2rem,11vw,5.2rem);line-height:1;font-weight:750;letter-spacing:-.04em;
font-variant-numeric:tabular-nums}
.hero .words{flex:1 1 320px}
.hero h2{margin:0;font-size:1.45rem;line-height:1.25}
.hero p{margin:8px 0 0;color:var(--herosoft)}
.hero.flat{background:var(--card);color:var(--ink);border:1px solid var(--line)}
.hero.flat p{color:var(--soft)}
.steps{list-style:none;padding:0;margin:0;display:grid;gap:12px;
grid-template-columns:repeat(auto-fit,minmax(min(100%,280px),1fr))}
.steps li{display:flex;flex-direction:column}.steps pre{margin-top:auto}
.steps p{margin:4px 0 10px;color:var(--soft);font-size:.93rem}
.steps .alone{font-size:.88rem;margin:10px 0 0}
pre{margin:0;background:var(--code);border:1px solid var(--line);border-radius:8px;padding:9px 10px;overflow-x:auto;
white-space:pre-wrap;
overflow-wrap:anywhere;font:.8rem/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.mini{display:flex;flex-direction:column}.mini pre{margin-top:4px}
.tiles{display:grid;gap:12px;grid-template-columns:repeat(3,1fr)}
.tile b{display:block;font-size:1.7rem;line-height:1.15;font-weight:680;letter-spacing:-.02em;
font-variant-numeric:tabular-nums}
.tile b small{font-size:.95rem;font-weight:500;color:var(--soft);letter-spacing:0}
.tile span{display:block;font-weight:600;font-size:.92rem;margin-top:3px}
.tile p{margin:4px 0 0;color:var(--soft);font-size:.86rem;line-height:1.4}
.row{display:grid;grid-template-columns:190px 1fr 156px;gap:0 16px;align-items:center;
border-top:1px solid var(--line)}
.row.axis{border:0}
.row .name{font-weight:600;font-size:.94rem;line-height:1.25;padding:4px 0}.row .plot{align-self:stretch;
display:flex;align-items:center}
.row .value{text-align:right;font-weight:680;font-variant-numeric:tabular-nums;white-space:nowrap}
svg{display:block;overflow:visible}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;color:var(--soft);font-size:.86rem;margin:12px 0 0}
.legend i{display:inline-block;width:11px;height:11px;border-radius:50%;margin-right:6px;vertical-align:-1px;
background:currentColor}
.legend .ring i{background:transparent;border:2px solid var(--base)}
.legend .faint i{width:7px;height:7px;opacity:.45;vertical-align:1px}
.legend .dash i{border-radius:0;height:3px;vertical-align:3px;width:18px}
.legend .good i,.legend .bad i{color:inherit}
.good{color:var(--good)}.bad{color:var(--bad)}.none{color:var(--soft)}
.badge{display:inline-block;font-size:.74rem;font-weight:650;padding:2px 9px;border-radius:99px;margin-left:6px;
vertical-align:2px;white-space:nowrap;
letter-spacing:.01em}
.badge.good{background:var(--goodbg)}.badge.bad{background:var(--badbg)}.badge.none{background:var(--track)}
.t{fill:var(--soft);font-size:12.5px;font-variant-numeric:tabular-nums}.t.strong{fill:var(--ink);font-weight:650}
.t.small{font-size:11px}
.t.bad{fill:var(--bad);font-weight:600}.t.good{fill:var(--good);font-weight:600}
.grid{stroke:var(--line);stroke-width:1}.one{stroke:var(--base);stroke-width:1.5;stroke-dasharray:3 3}
.axisline{stroke:var(--base);stroke-width:1}
.whisker{stroke:currentColor;stroke-width:2.5;stroke-linecap:round}
.mark{fill:currentColor;stroke:var(--card);stroke-width:1.5}.dot{fill:currentColor;opacity:.28}
.hollow{fill:var(--card);stroke:var(--base);stroke-width:2}.pair{stroke:var(--base);stroke-width:1.5;opacity:.55}
.curve{stroke:currentColor;stroke-width:2.4;stroke-linecap:round}.curve.base{stroke:var(--base);stroke-width:4.5;
opacity:.6}
.accent{color:var(--accent)}.mark.own{stroke:var(--ink);stroke-width:2.5}
.track{fill:var(--track)}.bar.accent{fill:var(--accent)}.bar.base{fill:var(--base)}
.two{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));align-items:start}
.stack{display:grid;gap:12px;grid-template-columns:minmax(0,1fr)}
.two .note,.note{color:var(--soft);font-size:.9rem;margin:8px 0 0}
.minis{display:grid;gap:12px;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr))}
.mini .reason{font-size:.88rem;color:var(--soft);margin:4px 0 10px;overflow-wrap:anywhere}
.mini h4{font-size:.8rem;font-weight:600;color:var(--soft);margin:8px 0 0}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th{text-align:left;color:var(--soft);font-weight:600;font-size:.82rem;padding:0 12px 8px 0}
td{padding:10px 12px 10px 0;border-top:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
td.num,th.num{text-align:right;padding-right:22px;white-space:nowrap;font-variant-numeric:tabular-nums}
td .badge{margin-left:0}
td.name{font-weight:600;overflow-wrap:break-word}
dl{display:grid;grid-template-columns:max-content 1fr;gap:5px 20px;margin:0;font-size:.93rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
footer{color:var(--soft);font-size:.86rem;margin-top:36px}
@media (max-width:820px){.tiles{grid-template-columns:repeat(2,1fr)}}
@media (max-width:640px){main{padding:18px 14px 48px}.hero{padding:22px 20px}.card{padding:15px 16px}
h2{margin-top:34px}
.tiles{gap:8px}.tile{padding:12px 13px}.tile b{font-size:1.35rem}.tile b small{font-size:.82rem}
.row{grid-template-columns:1fr auto;padding-top:9px}.row .plot{grid-column:1/-1;grid-row:2}
.row.axis>div:nth-child(2){grid-column:1/-1}
.row.axis>div:not(:nth-child(2)){display:none}
thead{display:none}table,tbody,tr,td{display:block}tr{border-top:1px solid var(--line);padding:10px 0}
tbody tr:first-child{border-top:0;padding-top:0}td{border:0;padding:1px 0}tbody tr{display:flex;flex-wrap:wrap;gap:0 14px;
align-items:center}td.name{flex:1 1 60%}td:last-child{flex:1 1 100%}td.num{text-align:left;padding-right:0}
td.num::before{content:attr(data-label) " ";color:var(--soft);font-size:.84rem}
dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:8px}}
@media print{body{background:#fff}.card,.hero{break-inside:avoid}}
)css";

}  // namespace saturate::audit
