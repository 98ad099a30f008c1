// The inspector's form, which asks the kernel for values; it stands below the static picture that the kernel made.
// Every answer was escaped in the kernel; nothing else is put in as HTML.

const BUSY_MS = 400;
let forms = 0;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function numberField(label, value, name) {
  const input = element("input", { type: "number", min: "0", step: "1", value: String(value), name, style: "width:6.5em" });
  return element("label", {}, `${label} `, input);
}

function form(about) {
  const select = element("select", { name: "key", style: "max-width:22em" });
  for (const [key, shape] of about.columns) select.append(element("option", { value: key }, `${key} ${shape}`));
  const fields = element("form", { class: "probe-ask", style: "display:flex;flex-wrap:wrap;gap:6px 12px;align-items:center;margin:8px 0" });
  fields.append(
    element("label", {}, "column ", select),
    numberField("rows from", about.start, "first"),
    numberField("up to, not including", Math.min(about.stop, about.start + 4), "last"),
    numberField("positions from", 0, "left"),
    numberField("up to", 32, "right"),
  );
  const kinds = [["values", "Show values"], ["tokens", "Show tokens"]];
  if (about.decodes) kinds.push(["text", "Show text"]);
  for (const [ask, label] of kinds) fields.append(element("button", { type: "submit", value: ask }, label));
  return fields;
}

function question(fields, ask, id) {
  const at = (name) => Math.max(0, Math.trunc(Number(fields.elements[name].value) || 0));
  const rows = [at("first"), at("last")];
  return { v: 1, id, ask, key: fields.elements.key.value, rows, positions: [at("left"), at("right")] };
}

function render({ model, el }) {
  const root = element("div", { class: "probe-batch", role: "region", "aria-label": "Values on demand" });
  el.append(root);
  const fields = form(model.get("about"));
  const status = element("p", { class: "soft", role: "status", "aria-live": "polite" });
  const result = element("div", { class: "probe-answer", tabindex: "-1" });
  root.append(element("h4", {}, "Values on demand"), fields, status, result);

  const view = ++forms;
  let number = 0;
  let timer = 0;
  const say = (text) => { status.textContent = text; };
  const answered = (content) => {
    if (!content || content.id !== `${view}.${number}`) return; // of another view, or of a question asked before
    clearTimeout(timer);
    say(content.error || "");
    if (content.error) result.replaceChildren();
    else result.innerHTML = content.html;
  };
  fields.addEventListener("submit", (event) => {
    event.preventDefault();
    number += 1;
    clearTimeout(timer);
    say("Asked the kernel …");
    timer = setTimeout(() => say("The kernel is busy. The answer comes when its cell has ended."), BUSY_MS);
    try {
      model.send(question(fields, event.submitter?.value || "values", `${view}.${number}`));
    } catch (error) {
      clearTimeout(timer);
      say("There is no kernel to ask. Run the cell again.");
    }
  });
  model.on("msg:custom", answered);
  return () => {
    clearTimeout(timer);
    model.off("msg:custom", answered);
    root.remove();
  };
}

export default { render };
