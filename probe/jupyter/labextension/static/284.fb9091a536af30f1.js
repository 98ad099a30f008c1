"use strict";(self.rspackChunkprobe_lab=self.rspackChunkprobe_lab||[]).push([[284],{22(e,o,r){var n=r(23),t=r.n(n),p=r(24),i=(r.n(p))()(t());i.push([e.id,`.probe-side { display: flex; flex-direction: column; overflow: hidden; min-inline-size: 180px; background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); font-size: var(--jp-ui-font-size1); }
.probe-side h2 { margin: 8px 12px 4px; font-size: var(--jp-ui-font-size0); text-transform: uppercase; letter-spacing: 0.08em; color: var(--jp-ui-font-color1); font-weight: 600; }
.probe-tools { display: flex; flex-wrap: wrap; gap: 4px; padding: 4px 12px 8px; border-block-end: 1px solid var(--jp-border-color2); }
.probe-side .probe-tools > * { box-sizing: border-box; block-size: 28px; margin: 0; font: inherit; letter-spacing: normal; }
.probe-tools select { padding-inline: 4px; border: 1px solid var(--jp-border-color1); background: var(--jp-layout-color1); color: inherit; }
.probe-tools input { flex: 1 1 120px; min-inline-size: 0; }
.probe-tools select { flex: 1 1 104px; min-inline-size: 0; }
.probe-runs { flex: 1 1 120px; min-block-size: 0; margin: 0; padding: 0; overflow-y: auto; list-style: none; }
.probe-runs li { display: grid; grid-template-columns: auto 20px minmax(0, 1fr); gap: 8px; padding: 8px 12px; border-block-end: 1px solid var(--jp-border-color3); }
.probe-runs li:hover { background: var(--jp-layout-color2); }
.probe-runs input { margin-block: 3px auto; }
:is(.probe-run-name, .probe-holder-name) { display: block; max-inline-size: 100%; padding: 0; border: 0; background: none; color: var(--jp-ui-font-color1); font: inherit; font-weight: 600; text-align: start; overflow-wrap: anywhere; cursor: pointer; }
:is(.probe-run-name, .probe-holder-name:enabled, .probe-link):hover { text-decoration: underline; }
:is(.probe-run-name, .probe-holder-name, .probe-link, .probe-memory summary, .probe-runs input):focus-visible { outline: 2px solid var(--jp-brand-color1); outline-offset: 2px; }
.probe-line > :empty { display: none; }
.probe-line { display: flex; flex-wrap: wrap; gap: 0 8px; color: var(--jp-ui-font-color2); font-variant-numeric: tabular-nums; }
[data-state="live"] .probe-state { color: var(--jp-success-color0, var(--jp-success-color1)); font-weight: 600; }
:is([data-state="failed"], [data-state="killed"]) .probe-state { color: var(--jp-error-color0, var(--jp-error-color1)); font-weight: 600; }
.probe-verdict { display: -webkit-box; margin: 2px 0 0; overflow: hidden; -webkit-box-orient: vertical; -webkit-line-clamp: 8; line-height: 1.35; overflow-wrap: anywhere; }
/* Sentences are English whatever the direction of the page is: their full stop stays at their end. */
.probe-side :is(.probe-run-name, .probe-holder-name, .probe-line > *, .probe-verdict, .probe-link, .probe-note, .probe-memory-note, h3), .probe-tab-output button, .probe-notice > span, .probe-copy-why span, .probe-compare :is(h1, h2, p, td, th) { unicode-bidi: plaintext; text-align: left; }
:is(.probe-side, .probe-notice, .probe-tab-output, .probe-copy-why, .probe-compare):dir(rtl) :is(.probe-run-name, .probe-line > *, .probe-verdict, .probe-link, .probe-note, .probe-memory-note, h3, button, span, h1, h2, p, td, th) { text-align: right; }
.probe-link { padding: 0; border: 0; background: none; color: var(--jp-content-link-color); font: inherit; text-align: start; cursor: pointer; }
.probe-link[hidden] { display: none; }
.probe-note { margin: 0; padding: 8px 12px; overflow-wrap: anywhere; border-block-end: 1px solid var(--jp-border-color3); color: var(--jp-ui-font-color2); }
.probe-note:empty { display: none; }
.probe-kind svg { display: block; inline-size: 20px; block-size: 20px; overflow: visible; }
.probe-kind .pp-i-full { fill: currentcolor; }
.probe-kind .pp-i-line { fill: none; stroke: currentcolor; stroke-width: 2; }
.probe-kind .pp-i-cut { fill: none; stroke: var(--jp-layout-color1); stroke-width: 2; }
.probe-kind .pp-i-dashed { stroke-dasharray: 3 3; }
[data-kind="alarm"] > .probe-kind { color: var(--jp-error-color1); }
[data-kind="tuning"] > .probe-kind { color: var(--jp-warn-color1); }
[data-kind="fine"] > .probe-kind { color: var(--jp-success-color1); }
[data-kind="unknown"] > .probe-kind { color: var(--jp-ui-font-color3); }
.probe-tab { overflow: auto; padding: 8px 12px; background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); }
.probe-copy-why { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: center; max-inline-size: 760px; box-sizing: border-box; margin-block-end: 8px; padding: 8px 12px; border: 1px solid var(--jp-border-color1); border-radius: 4px; color: var(--jp-ui-font-color1); font-size: var(--jp-ui-font-size1); line-height: 1.4; }
.probe-copy-why p { flex: 1 1 240px; margin: 0; overflow-wrap: anywhere; }
.probe-copy-why span { display: block; }
.probe-copy-why button { flex: none; white-space: nowrap; }
.probe-copy-why[hidden], .probe-copy-why [hidden] { display: none; }
.probe-notice { display: flex; gap: 8px; align-items: center; margin-block-end: 8px; padding: 8px 12px; border: 1px solid var(--jp-warn-color1); border-radius: 4px; }
.probe-notice button { flex: none; white-space: nowrap; }
.probe-notice[hidden], .probe-notice [hidden] { display: none; }
:is(.probe-status, .probe-memory-status) { border: 0; background: none; color: inherit; font: inherit; padding: 0 6px; cursor: pointer; }
.probe-status[data-kind="alarm"] { font-weight: 600; }
:is(.probe-status, .probe-memory-status)[hidden] { display: none; }
.probe-memory { flex: 0 1 auto; max-block-size: 50%; min-block-size: 32px; overflow-y: auto; border-block-start: 1px solid var(--jp-border-color1); }
.probe-memory[hidden] { display: none; }
.probe-memory summary { display: flex; flex-wrap: wrap; gap: 0 8px; align-items: baseline; padding: 8px 12px; cursor: pointer; }
.probe-memory summary:focus-visible { outline-offset: -2px; }
.probe-memory summary::before { content: "▸"; color: var(--jp-ui-font-color2); }
.probe-memory summary:dir(rtl)::before { content: "◂"; }
.probe-memory[open] summary::before { content: "▾"; }
.probe-memory-title { flex: 1; font-weight: 600; }
:is(.probe-memory-short, .probe-bytes) { font-variant-numeric: tabular-nums; unicode-bidi: plaintext; }
.probe-memory[open] .probe-memory-short { display: none; }
.probe-memory-note { margin: 0; padding: 0 12px 8px; overflow-wrap: anywhere; color: var(--jp-ui-font-color2); }
.probe-memory-note:empty { display: none; }
.probe-device-head { display: flex; flex-wrap: wrap; gap: 0 8px; align-items: baseline; justify-content: space-between; padding: 4px 12px; border-block-start: 1px solid var(--jp-border-color2); }
.probe-device h3 { margin: 0; font-size: inherit; font-weight: 400; overflow-wrap: anywhere; }
.probe-holders { margin: 0; padding: 0; list-style: none; }
.probe-holders li { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 0 8px; padding: 6px 12px; }
.probe-holders li:hover { background: var(--jp-layout-color2); }
.probe-holders .probe-line { grid-column: 1 / -1; }
.probe-holder-name:disabled { cursor: default; font-weight: 400; }
.probe-pids { overflow-wrap: anywhere; }
.probe-compare { overflow: auto; padding: 8px 16px; background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); }
.probe-compare h1 { font-size: var(--jp-ui-font-size3); overflow-wrap: anywhere; }
.probe-compare h2 { font-size: var(--jp-ui-font-size2); }
.probe-scroll { overflow-x: auto; }
.probe-compare table { border-collapse: collapse; }
.probe-compare :is(td, th) { padding: 4px 8px; border-block-end: 1px solid var(--jp-border-color2); text-align: start; vertical-align: top; font-variant-numeric: tabular-nums; }
`,""]),r.d(o,{},{A:i})},24(e){e.exports=function(e){var o=[];return o.toString=function(){return this.map(function(o){var r="",n=void 0!==o[5];return o[4]&&(r+="@supports (".concat(o[4],") {")),o[2]&&(r+="@media ".concat(o[2]," {")),n&&(r+="@layer".concat(o[5].length>0?" ".concat(o[5]):""," {")),r+=e(o),n&&(r+="}"),o[2]&&(r+="}"),o[4]&&(r+="}"),r}).join("")},o.i=function(e,r,n,t,p){"string"==typeof e&&(e=[[null,e,void 0]]);var i={};if(n)for(var a=0;a<this.length;a++){var l=this[a][0];null!=l&&(i[l]=!0)}for(var s=0;s<e.length;s++){var d=[].concat(e[s]);n&&i[d[0]]||(void 0!==p&&(void 0===d[5]||(d[1]="@layer".concat(d[5].length>0?" ".concat(d[5]):""," {").concat(d[1],"}")),d[5]=p),r&&(d[2]&&(d[1]="@media ".concat(d[2]," {").concat(d[1],"}")),d[2]=r),t&&(d[4]?(d[1]="@supports (".concat(d[4],") {").concat(d[1],"}"),d[4]=t):d[4]="".concat(t)),o.push(d))}},o}},23(e){e.exports=function(e){return e[1]}},15(e,o,r){r.r(o);var n=r(16),t=r.n(n),p=r(17),i=r.n(p),a=r(18),l=r.n(a),s=r(19),d=r.n(s),c=r(20),b=r.n(c),u=r(21),f=r.n(u),m=r(22),x={};x.styleTagTransform=f(),x.setAttributes=d(),x.insert=l().bind(null,"head"),x.domAPI=i(),x.insertStyleElement=b(),t()(m.A,x);let h=m.A&&m.A.locals?m.A.locals:void 0;r.d(o,{},{default:h})},16(e){var o=[];function r(e){for(var r=-1,n=0;n<o.length;n++)if(o[n].identifier===e){r=n;break}return r}function n(e,n){for(var t={},p=[],i=0;i<e.length;i++){var a=e[i],l=n.base?a[0]+n.base:a[0],s=t[l]||0,d="".concat(l," ").concat(s);t[l]=s+1;var c=r(d),b={css:a[1],media:a[2],sourceMap:a[3],supports:a[4],layer:a[5]};if(-1!==c)o[c].references++,o[c].updater(b);else{var u=function(e,o){var r=o.domAPI(o);return r.update(e),function(o){o?(o.css!==e.css||o.media!==e.media||o.sourceMap!==e.sourceMap||o.supports!==e.supports||o.layer!==e.layer)&&r.update(e=o):r.remove()}}(b,n);n.byIndex=i,o.splice(i,0,{identifier:d,updater:u,references:1})}p.push(d)}return p}e.exports=function(e,t){var p=n(e=e||[],t=t||{});return function(e){e=e||[];for(var i=0;i<p.length;i++){var a=r(p[i]);o[a].references--}for(var l=n(e,t),s=0;s<p.length;s++){var d=r(p[s]);0===o[d].references&&(o[d].updater(),o.splice(d,1))}p=l}}},18(e){var o={};e.exports=function(e,r){var n=function(e){if(void 0===o[e]){var r=document.querySelector(e);if(window.HTMLIFrameElement&&r instanceof window.HTMLIFrameElement)try{r=r.contentDocument.head}catch(e){r=null}o[e]=r}return o[e]}(e);if(!n)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");n.appendChild(r)}},20(e){e.exports=function(e){var o=document.createElement("style");return e.setAttributes(o,e.attributes),e.insert(o,e.options),o}},19(e,o,r){e.exports=function(e){var o=r.nc;o&&e.setAttribute("nonce",o)}},17(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var o=e.insertStyleElement(e);return{update:function(r){var n,t,p;n="",r.supports&&(n+="@supports (".concat(r.supports,") {")),r.media&&(n+="@media ".concat(r.media," {")),(t=void 0!==r.layer)&&(n+="@layer".concat(r.layer.length>0?" ".concat(r.layer):""," {")),n+=r.css,t&&(n+="}"),r.media&&(n+="}"),r.supports&&(n+="}"),(p=r.sourceMap)&&"u">typeof btoa&&(n+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(p))))," */")),e.styleTagTransform(n,o,e.options)},remove:function(){var e;null===(e=o).parentNode||e.parentNode.removeChild(e)}}}},21(e){e.exports=function(e,o){if(o.styleSheet)o.styleSheet.cssText=e;else{for(;o.firstChild;)o.removeChild(o.firstChild);o.appendChild(document.createTextNode(e))}}}}]);