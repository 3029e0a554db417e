// Checks objects of operators' kinds, an array in JSON on standard input, with the schemas that npm installs beside this file.
//
// The schemas are compiled functions that read each field they know. A field that nobody has read is unknown, and the API server
// would drop it.
import fs from "node:fs";

const PACKAGES = {
  "gateway.networking.k8s.io/v1": "@kubernetes-models/gateway-api",
  "monitoring.coreos.com/v1": "@kubernetes-models/prometheus-operator",
};

/** The same value; each field leaves `unread` when it is read. */
function watch(value, place, unread) {
  if (value === null || typeof value !== "object") {
    return value;
  }
  const fields = new Map();
  for (const key of Object.keys(value)) {
    unread.add(`${place}/${key}`);
    fields.set(key, watch(value[key], `${place}/${key}`, unread));
  }
  const get = (target, key) => {
    unread.delete(`${place}/${key}`);
    return fields.has(key) ? fields.get(key) : target[key];
  };
  return new Proxy(value, { get });
}

const faults = [];
for (const object of JSON.parse(fs.readFileSync(0, "utf8"))) {
  const { apiVersion, kind, metadata } = object;
  const model = (await import(`${PACKAGES[apiVersion]}/${apiVersion}/${kind}`))[kind];
  const unread = new Set();
  try {
    model.prototype.validate.call(watch(object, "", unread));
    faults.push(...[...unread].map((field) => `${kind} ${metadata.name}: the schema has no ${field}`));
  } catch (error) {
    faults.push(`${kind} ${metadata.name}: ${error.message}`);
  }
}
if (faults.length > 0) {
  console.error(faults.join("\n"));
  process.exit(1);
}
