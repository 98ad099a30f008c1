"use strict";(self.rspackChunkprobe_lab=self.rspackChunkprobe_lab||[]).push([[284],{22(e,o,r){var n=r(23),t=r.n(n),i=r(24),a=(r.n(i))()(t());a.push([e.id,`.probe-side { display: flex; flex-direction: column; overflow: hidden; min-inline-size: 180px; background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); font-size: var(--jp-ui-font-size1); }
.probe-side h2 { margin: 8px 12px 4px; font-size: var(--jp-ui-font-size0); text-transform: uppercase; letter-spacing: 0.08em; color: var(--jp-ui-font-color1); font-weight: 600; }
.probe-tools { display: flex; flex-wrap: wrap; gap: 4px; padding: 4px 12px 8px; border-block-end: 1px solid var(--jp-border-color2); }
.probe-side .probe-tools > * { box-sizing: border-box; block-size: 28px; margin: 0; font: inherit; letter-spacing: normal; }
.probe-tools select { padding-inline: 4px; border: 1px solid var(--jp-border-color1); background: var(--jp-layout-color1); color: inherit; }
.probe-tools input { flex: 1 1 120px; min-inline-size: 0; }
.probe-tools select { flex: 1 1 104px; min-inline-size: 0; }
.probe-runs { flex: 1; margin: 0; padding: 0; overflow-y: auto; list-style: none; }
.probe-runs li { display: grid; grid-template-columns: auto 20px minmax(0, 1fr); gap: 8px; padding: 8px 12px; border-block-end: 1px solid var(--jp-border-color3); }
.probe-runs li:hover { background: var(--jp-layout-color2); }
.probe-runs input { margin-block: 3px auto; }
.probe-run-name { display: block; max-inline-size: 100%; padding: 0; border: 0; background: none; color: var(--jp-ui-font-color1); font: inherit; font-weight: 600; text-align: start; overflow-wrap: anywhere; cursor: pointer; }
.probe-run-name:hover, .probe-link:hover { text-decoration: underline; }
.probe-run-name:focus-visible, .probe-link:focus-visible, .probe-runs input:focus-visible { outline: 2px solid var(--jp-brand-color1); outline-offset: 2px; }
.probe-line > :empty { display: none; }
.probe-line { display: flex; flex-wrap: wrap; gap: 0 8px; color: var(--jp-ui-font-color2); font-variant-numeric: tabular-nums; }
[data-state="live"] .probe-state { color: var(--jp-success-color0, var(--jp-success-color1)); font-weight: 600; }
:is([data-state="failed"], [data-state="killed"]) .probe-state { color: var(--jp-error-color0, var(--jp-error-color1)); font-weight: 600; }
.probe-verdict { display: -webkit-box; margin: 2px 0 0; overflow: hidden; -webkit-box-orient: vertical; -webkit-line-clamp: 8; line-height: 1.35; overflow-wrap: anywhere; }
/* Sentences are English whatever the direction of the page is: their full stop stays at their end. */
.probe-side :is(.probe-run-name, .probe-line > *, .probe-verdict, .probe-link, .probe-note), .probe-tab-output button, .probe-notice > span, .probe-compare :is(h1, h2, p, td, th) { unicode-bidi: plaintext; text-align: left; }
:is(.probe-side, .probe-notice, .probe-tab-output, .probe-compare):dir(rtl) :is(.probe-run-name, .probe-line > *, .probe-verdict, .probe-link, .probe-note, button, span, h1, h2, p, td, th) { text-align: right; }
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
.probe-notice { display: flex; gap: 8px; align-items: center; margin-block-end: 8px; padding: 8px 12px; border: 1px solid var(--jp-warn-color1); border-radius: 4px; }
.probe-notice button { flex: none; white-space: nowrap; }
.probe-notice[hidden], .probe-notice [hidden] { display: none; }
.probe-status { border: 0; background: none; color: inherit; font: inherit; padding: 0 6px; cursor: pointer; }
.probe-status[data-kind="alarm"] { font-weight: 600; }
.probe-status[hidden] { display: none; }
.probe-compare { overflow: auto; padding: 8px 16px; background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); }
.probe-compare h1 { font-size: var(--jp-ui-font-size3); overflow-wrap: anywhere; }
.probe-compare h2 { font-size: var(--jp-ui-font-size2); }
.probe-scroll { overflow-x: auto; }
.probe-compare table { border-collapse: collapse; }
.probe-compare :is(td, th) { padding: 4px 8px; border-block-end: 1px solid var(--jp-border-color2); text-align: start; vertical-align: top; font-variant-numeric: tabular-nums; }
`,""]),r.d(o,{},{A:a})},24(e){e.exports=function(e){var o=[];return o.toString=function(){return this.map(function(o){var r="",n=void 0!==o[5];return o[4]&&(r+="@supports (".concat(o[4],") {")),o[2]&&(r+="@media ".concat(o[2]," {")),n&&(r+="@layer".concat(o[5].length>0?" ".concat(o[5]):""," {")),r+=e(o),n&&(r+="}"),o[2]&&(r+="}"),o[4]&&(r+="}"),r}).join("")},o.i=function(e,r,n,t,i){"string"==typeof e&&(e=[[null,e,void 0]]);var a={};if(n)for(var p=0;p<this.length;p++){var l=this[p][0];null!=l&&(a[l]=!0)}for(var s=0;s<e.length;s++){var c=[].concat(e[s]);n&&a[c[0]]||(void 0!==i&&(void 0===c[5]||(c[1]="@layer".concat(c[5].length>0?" ".concat(c[5]):""," {").concat(c[1],"}")),c[5]=i),r&&(c[2]&&(c[1]="@media ".concat(c[2]," {").concat(c[1],"}")),c[2]=r),t&&(c[4]?(c[1]="@supports (".concat(c[4],") {").concat(c[1],"}"),c[4]=t):c[4]="".concat(t)),o.push(c))}},o}},23(e){e.exports=function(e){return e[1]}},15(e,o,r){r.r(o);var n=r(16),t=r.n(n),i=r(17),a=r.n(i),p=r(18),l=r.n(p),s=r(19),c=r.n(s),d=r(20),u=r.n(d),b=r(21),f=r.n(b),v=r(22),h={};h.styleTagTransform=f(),h.setAttributes=c(),h.insert=l().bind(null,"head"),h.domAPI=a(),h.insertStyleElement=u(),t()(v.A,h);let x=v.A&&v.A.locals?v.A.locals:void 0;r.d(o,{},{default:x})},16(e){var o=[];function r(e){for(var r=-1,n=0;n<o.length;n++)if(o[n].identifier===e){r=n;break}return r}function n(e,n){for(var t={},i=[],a=0;a<e.length;a++){var p=e[a],l=n.base?p[0]+n.base:p[0],s=t[l]||0,c="".concat(l," ").concat(s);t[l]=s+1;var d=r(c),u={css:p[1],media:p[2],sourceMap:p[3],supports:p[4],layer:p[5]};if(-1!==d)o[d].references++,o[d].updater(u);else{var b=function(e,o){var r=o.domAPI(o);return r.update(e),function(o){o?(o.css!==e.css||o.media!==e.media||o.sourceMap!==e.sourceMap||o.supports!==e.supports||o.layer!==e.layer)&&r.update(e=o):r.remove()}}(u,n);n.byIndex=a,o.splice(a,0,{identifier:c,updater:b,references:1})}i.push(c)}return i}e.exports=function(e,t){var i=n(e=e||[],t=t||{});return function(e){e=e||[];for(var a=0;a<i.length;a++){var p=r(i[a]);o[p].references--}for(var l=n(e,t),s=0;s<i.length;s++){var c=r(i[s]);0===o[c].references&&(o[c].updater(),o.splice(c,1))}i=l}}},18(e){var o={};e.exports=function(e,r){var n=function(e){if(void 0===o[e]){var r=document.querySelector(e);if(window.HTMLIFrameElement&&r instanceof window.HTMLIFrameElement)try{r=r.contentDocument.head}catch(e){r=null}o[e]=r}return o[e]}(e);if(!n)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");n.appendChild(r)}},20(e){e.exports=function(e){var o=document.createElement("style");return e.setAttributes(o,e.attributes),e.insert(o,e.options),o}},19(e,o,r){e.exports=function(e){var o=r.nc;o&&e.setAttribute("nonce",o)}},17(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var o=e.insertStyleElement(e);return{update:function(r){var n,t,i;n="",r.supports&&(n+="@supports (".concat(r.supports,") {")),r.media&&(n+="@media ".concat(r.media," {")),(t=void 0!==r.layer)&&(n+="@layer".concat(r.layer.length>0?" ".concat(r.layer):""," {")),n+=r.css,t&&(n+="}"),r.media&&(n+="}"),r.supports&&(n+="}"),(i=r.sourceMap)&&"u">typeof btoa&&(n+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(i))))," */")),e.styleTagTransform(n,o,e.options)},remove:function(){var e;null===(e=o).parentNode||e.parentNode.removeChild(e)}}}},21(e){e.exports=function(e,o){if(o.styleSheet)o.styleSheet.cssText=e;else{for(;o.firstChild;)o.removeChild(o.firstChild);o.appendChild(document.createTextNode(e))}}}}]);