// A small part of Markdown, made of elements and text nodes: what somebody wrote is never read as HTML.

const FENCE = /^```[^`]*$/;
const INLINE = new RegExp(
  [
    "`([^`\\n]{1,2000})`",
    "\\*\\*([^*\\n]{1,1000})\\*\\*",
    "(?<![\\w*])[*_]([^*_\\s](?:[^*_\\n]{0,998}[^*_\\s])?)[*_](?![\\w*])",
    "\\[([^\\]\\n]{1,200})\\]\\((https?://[^\\s()]{1,1000})\\)",
    "(https?://[^\\s<>\"'`]{1,1000}[^\\s<>\"'`.,;:!?)\\]])",
    "(?<![\\w@.-])(@[\\p{L}\\p{N}][\\p{L}\\p{M}\\p{N}_.'’·-]{0,31})",
  ].join("|"),
  "gu",
);

export function markdown(text) {
  const made = document.createDocumentFragment();
  let code = null;
  let lines = [];
  const flush = () => {
    if (lines.length) made.append(paragraph(lines.join("\n")));
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (FENCE.test(line.trimEnd())) {
      if (code === null) {
        flush();
        code = [];
      } else {
        made.append(fenced(code));
        code = null;
      }
    } else if (code !== null) {
      code.push(line);
    } else if (line.trim() === "") {
      flush();
    } else {
      lines.push(line);
    }
  }
  flush();
  if (code !== null) made.append(fenced(code));
  return made;
}

function fenced(lines) {
  const pre = document.createElement("pre");
  pre.append(element("code", lines.join("\n")));
  return pre;
}

function paragraph(text) {
  const made = document.createElement("p");
  // Each by itself: a message may have several languages.
  made.dir = "auto";
  made.append(...inline(text));
  return made;
}

function inline(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > end) parts.push(text.slice(end, match.index));
    end = match.index + match[0].length;
    const [, code, bold, italic, label, target, address, mention] = match;
    if (code !== undefined) parts.push(element("code", code));
    else if (bold !== undefined) parts.push(element("strong", ...inline(bold)));
    else if (italic !== undefined) parts.push(element("em", ...inline(italic)));
    else if (target !== undefined) parts.push(link(target, label));
    else if (address !== undefined) parts.push(link(address, address));
    else parts.push(named(mention));
  }
  if (end < text.length) parts.push(text.slice(end));
  return parts;
}

function link(address, label) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return label;
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") return label;
  const made = element("a", label);
  made.href = url.href;
  made.rel = "noopener nofollow noreferrer";
  made.target = "_blank";
  return made;
}

function named(mention) {
  const made = element("span", mention);
  made.className = "mention";
  return made;
}

function element(name, ...content) {
  const made = document.createElement(name);
  made.append(...content);
  return made;
}
