"use strict";(self.rspackChunkprobe_lab=self.rspackChunkprobe_lab||[]).push([[284],{22(o,e,r){var n=r(23),t=r.n(n),p=r(24),a=(r.n(p))()(t());a.push([o.id,`.probe-side { display: flex; flex-direction: column; overflow: hidden; min-inline-size: 180px; background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); font-size: var(--jp-ui-font-size1); }
.probe-side h2 { margin: 8px 12px 4px; font-size: var(--jp-ui-font-size0); text-transform: uppercase; letter-spacing: 0.08em; color: var(--jp-ui-font-color1); font-weight: 600; }
.probe-tools { display: flex; flex-wrap: wrap; gap: 4px; padding: 4px 12px 8px; border-block-end: 1px solid var(--jp-border-color2); }
.probe-side .probe-tools > * { box-sizing: border-box; block-size: 32px; margin: 0; font: inherit; letter-spacing: normal; }
.probe-tools select { padding-inline: 4px; border: 1px solid var(--jp-border-color1); background: var(--jp-layout-color1); color: inherit; }
.probe-side .probe-tools button { flex: none; border: 1px solid var(--jp-border-color1); border-radius: var(--jp-border-radius); background: var(--jp-layout-color2); color: var(--jp-ui-font-color1); line-height: 1; }
.probe-side .probe-tools button:enabled:hover { background: var(--jp-layout-color3); }
.probe-side .probe-tools button:disabled { border-color: var(--jp-border-color2); background: none; color: var(--jp-ui-font-color3); cursor: default; }
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
.probe-compare .probe-metrics :is(td, th):not(:first-child) { text-align: end; white-space: nowrap; }
.probe-compare td:first-child { overflow-wrap: anywhere; }
`,""]),r.d(e,{},{A:a})},24(o){o.exports=function(o){var e=[];return e.toString=function(){return this.map(function(e){var r="",n=void 0!==e[5];return e[4]&&(r+="@supports (".concat(e[4],") {")),e[2]&&(r+="@media ".concat(e[2]," {")),n&&(r+="@layer".concat(e[5].length>0?" ".concat(e[5]):""," {")),r+=o(e),n&&(r+="}"),e[2]&&(r+="}"),e[4]&&(r+="}"),r}).join("")},e.i=function(o,r,n,t,p){"string"==typeof o&&(o=[[null,o,void 0]]);var a={};if(n)for(var i=0;i<this.length;i++){var l=this[i][0];null!=l&&(a[l]=!0)}for(var s=0;s<o.length;s++){var d=[].concat(o[s]);n&&a[d[0]]||(void 0!==p&&(void 0===d[5]||(d[1]="@layer".concat(d[5].length>0?" ".concat(d[5]):""," {").concat(d[1],"}")),d[5]=p),r&&(d[2]&&(d[1]="@media ".concat(d[2]," {").concat(d[1],"}")),d[2]=r),t&&(d[4]?(d[1]="@supports (".concat(d[4],") {").concat(d[1],"}"),d[4]=t):d[4]="".concat(t)),e.push(d))}},e}},23(o){o.exports=function(o){return o[1]}},15(o,e,r){r.r(e);var n=r(16),t=r.n(n),p=r(17),a=r.n(p),i=r(18),l=r.n(i),s=r(19),d=r.n(s),c=r(20),b=r.n(c),u=r(21),f=r.n(u),m=r(22),v={};v.styleTagTransform=f(),v.setAttributes=d(),v.insert=l().bind(null,"head"),v.domAPI=a(),v.insertStyleElement=b(),t()(m.A,v);let h=m.A&&m.A.locals?m.A.locals:void 0;r.d(e,{},{default:h})},16(o){var e=[];function r(o){for(var r=-1,n=0;n<e.length;n++)if(e[n].identifier===o){r=n;break}return r}function n(o,n){for(var t={},p=[],a=0;a<o.length;a++){var i=o[a],l=n.base?i[0]+n.base:i[0],s=t[l]||0,d="".concat(l," ").concat(s);t[l]=s+1;var c=r(d),b={css:i[1],media:i[2],sourceMap:i[3],supports:i[4],layer:i[5]};if(-1!==c)e[c].references++,e[c].updater(b);else{var u=function(o,e){var r=e.domAPI(e);return r.update(o),function(e){e?(e.css!==o.css||e.media!==o.media||e.sourceMap!==o.sourceMap||e.supports!==o.supports||e.layer!==o.layer)&&r.update(o=e):r.remove()}}(b,n);n.byIndex=a,e.splice(a,0,{identifier:d,updater:u,references:1})}p.push(d)}return p}o.exports=function(o,t){var p=n(o=o||[],t=t||{});return function(o){o=o||[];for(var a=0;a<p.length;a++){var i=r(p[a]);e[i].references--}for(var l=n(o,t),s=0;s<p.length;s++){var d=r(p[s]);0===e[d].references&&(e[d].updater(),e.splice(d,1))}p=l}}},18(o){var e={};o.exports=function(o,r){var n=function(o){if(void 0===e[o]){var r=document.querySelector(o);if(window.HTMLIFrameElement&&r instanceof window.HTMLIFrameElement)try{r=r.contentDocument.head}catch(o){r=null}e[o]=r}return e[o]}(o);if(!n)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");n.appendChild(r)}},20(o){o.exports=function(o){var e=document.createElement("style");return o.setAttributes(e,o.attributes),o.insert(e,o.options),e}},19(o,e,r){o.exports=function(o){var e=r.nc;e&&o.setAttribute("nonce",e)}},17(o){o.exports=function(o){if("u"<typeof document)return{update:function(){},remove:function(){}};var e=o.insertStyleElement(o);return{update:function(r){var n,t,p;n="",r.supports&&(n+="@supports (".concat(r.supports,") {")),r.media&&(n+="@media ".concat(r.media," {")),(t=void 0!==r.layer)&&(n+="@layer".concat(r.layer.length>0?" ".concat(r.layer):""," {")),n+=r.css,t&&(n+="}"),r.media&&(n+="}"),r.supports&&(n+="}"),(p=r.sourceMap)&&"u">typeof btoa&&(n+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(p))))," */")),o.styleTagTransform(n,e,o.options)},remove:function(){var o;null===(o=e).parentNode||o.parentNode.removeChild(o)}}}},21(o){o.exports=function(o,e){if(e.styleSheet)e.styleSheet.cssText=o;else{for(;e.firstChild;)e.removeChild(e.firstChild);e.appendChild(document.createTextNode(o))}}}}]);