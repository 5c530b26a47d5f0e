// The drawing of a zero to the demo model `digits`, from Node 18 or newer, or a browser; nothing to
// install:
//
//     ripieno serve models/repository &
//     node clients/node/infer.mjs localhost:8000
//
// Tensors go and come as bytes behind a head of JSON, which for images is a tenth of the work of
// numbers in JSON.

const HEAD_LENGTH = "Inference-Header-Content-Length";
const address = process.argv[2] ?? "localhost:8000";
const image = new Float32Array([
  0, 0, 0.3, 0.9, 0.6, 0.1, 0, 0,    0, 0, 0.8, 0.9, 0.6, 0.9, 0.3, 0,  0, 0.2, 0.9, 0.1, 0, 0.7, 0.5, 0,
  0, 0.3, 0.8, 0, 0, 0.5, 0.5, 0,    0, 0.3, 0.5, 0, 0, 0.6, 0.5, 0,    0, 0.3, 0.7, 0, 0.1, 0.8, 0.4, 0,
  0, 0.1, 0.9, 0.3, 0.6, 0.8, 0, 0,  0, 0, 0.4, 0.8, 0.6, 0, 0, 0,
]);

/** Sends one tensor and gives the answer's first; `deadlineMs` is from now on. */
async function infer(model, name, shape, data, deadlineMs) {
  const head = new TextEncoder().encode(JSON.stringify({
    parameters: { binary_data_output: true, timeout: 1000 * deadlineMs },
    inputs: [{ name, datatype: "FP32", shape, parameters: { binary_data_size: data.byteLength } }],
  }));
  const response = await fetch(`http://${address}/v2/models/${model}/infer`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream", [HEAD_LENGTH]: String(head.length) },
    body: new Blob([head, data]),
  });
  if (!response.ok) throw new Error(`${response.status}: ${(await response.json()).error}`);
  const body = await response.arrayBuffer();
  const end = Number(response.headers.get(HEAD_LENGTH));
  return new Float32Array(body.slice(end));
}

const logits = await infer("digits", "image", [1, 1, 8, 8], image, 5000);
console.log(`the drawing is a ${logits.indexOf(Math.max(...logits))}`);
