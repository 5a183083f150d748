// Server-sent events of an answer that was asked for with POST, which EventSource can't do.

import { Refused } from "./api.js";

const END = "[DONE]";

/** The data of each event as an object, to the end mark. An event that is an error, or an answer cut short, is thrown. */
export async function* events(answer) {
  let rest = "";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Refused(0, "cut", "the answer was cut short");
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.replace(/^data: /, "");
        if (data === END) return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Refused(500, chunk.error.code, chunk.error.message);
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
