"use strict";

async function start() {
  const { info, paths } = await (await fetch("openapi.json")).json();
  document.title = `Requests to ${info.title}`;
  for (const [path, operations] of Object.entries(paths)) {
    for (const [method, { description, requestBody }] of Object.entries(operations)) {
      const example = requestBody && JSON.stringify(requestBody.content["application/json"].example);
      const own = path.replace("{model}", encodeURIComponent(info.title));
      const title = element("h2", { text: `${method.toUpperCase()} ${own}` });
      const children = [title, element("p", { text: description }), element("pre", { text: curl(own.slice(1), example) })];
      $("answer").append(element("section", { children }));
    }
  }
}

start().catch((error) => show(`The page does not work: ${error.message}`));
