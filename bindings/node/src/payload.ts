/** Payloads: the language's own values as MessagePack, and back. */

import { addExtension, Packr, Unpackr } from "msgpackr";

import { EncodeError, type ErrorDetails } from "./errors.js";

/** How deep arrays and maps may nest. */
const MAX_DEPTH = 128;
const MAX_UINT64 = 2n ** 64n;
const MIN_INT64 = -(2n ** 63n);

/** A MessagePack extension that this package gives no meaning to. It can be sent again as it came. */
export class Extension {
  constructor(
    /** Its type, -128 to 127. */
    readonly type: number,
    readonly data: Uint8Array,
  ) {}
}

// Between the two halves every extension but timestamps is one of type 1, whose first byte is its own type.
// The registry is this bundle's own: the application's msgpackr is another one.
addExtension({
  Class: Extension,
  type: 1,
  pack: (extension: Extension) => {
    const bytes = new Uint8Array(1 + extension.data.length);
    bytes[0] = extension.type & 0xff;
    bytes.set(extension.data, 1);
    return bytes;
  },
  unpack: (bytes: Uint8Array) =>
    new Extension(((bytes[0] ?? 0) << 24) >> 24, Uint8Array.prototype.slice.call(bytes, 1)),
} as never);

const packr = new Packr({ useRecords: false, encodeUndefinedAsNil: true } as never);
// Binary values are copied, so that one of them does not hold on to the batch it came in.
const unpackr = new Unpackr({ useRecords: false, int64AsType: "auto", copyBuffers: true } as never);

/** Encodes one value that is known to be fit. */
export function pack(value: unknown): Uint8Array {
  return packr.pack(value);
}

/** Decodes one value. */
export function unpack(bytes: Uint8Array): unknown {
  return unpackr.unpack(bytes);
}

/** Decodes values that stand back to back. */
export function unpackAll(bytes: Uint8Array): unknown[] {
  return unpackr.unpackMultiple(bytes) as unknown[];
}

/**
 * The value as it can be encoded: integers stay integers however large, `undefined` is left out of maps and nil in arrays.
 *
 * @throws EncodeError for what MessagePack cannot hold.
 */
export function encodable(value: unknown, details: ErrorDetails): unknown {
  try {
    return fitted(value, 0);
  } catch (error) {
    if (error instanceof Unfit) throw new EncodeError(error.message, details);
    throw error;
  }
}

/** What is wrong with a value. */
class Unfit extends Error {}

function fitted(value: unknown, depth: number): unknown {
  switch (typeof value) {
    case "string":
    case "boolean":
      return value;
    case "undefined":
      return null;
    case "number":
      if (!Number.isFinite(value)) throw new Unfit(`${value} is no number that every client can read`);
      // Within 32 bits the encoder writes integers by itself, beyond them floats.
      return Number.isSafeInteger(value) && (value > 0xffff_ffff || value < -0x8000_0000) ? BigInt(value) : value;
    case "bigint":
      if (value >= MAX_UINT64 || value < MIN_INT64) throw new Unfit(`${value} has more than 64 bits`);
      return value;
    case "object":
      return value === null ? null : fittedObject(value, depth + 1);
    default:
      throw new Unfit(`a ${typeof value} cannot be sent`);
  }
}

function fittedObject(value: object, depth: number): unknown {
  if (depth > MAX_DEPTH) throw new Unfit(`nested deeper than ${MAX_DEPTH} levels, or within itself`);
  if (Array.isArray(value)) return Array.from(value, (item) => fitted(item, depth));
  const prototype = Object.getPrototypeOf(value);
  if (prototype === Object.prototype || prototype === null) return fittedRecord(value, depth);
  if (value instanceof Date) {
    if (Number.isNaN(value.getTime())) throw new Unfit("an invalid Date cannot be sent");
    return value;
  }
  if (value instanceof Extension) {
    if (!(Number.isInteger(value.type) && value.type >= -128 && value.type < 128 && value.data instanceof Uint8Array)) {
      throw new Unfit("an Extension has a type from -128 to 127, and bytes");
    }
    return value;
  }
  if (value instanceof Uint8Array) return value;
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  if (value instanceof Map) {
    return new Map(Array.from(value, ([key, item]) => [fitted(key, depth), fitted(item, depth)]));
  }
  if (value instanceof Promise) throw new Unfit("a Promise cannot be sent: await it");
  if (value instanceof Set) throw new Unfit("a Set cannot be sent: make it an array");
  if (value instanceof Number || value instanceof String || value instanceof Boolean) {
    return fitted(value.valueOf(), depth);
  }
  return fittedRecord(value, depth);
}

/** Own enumerable properties, as the published clients send them. */
function fittedRecord(value: object, depth: number): unknown {
  const record: Record<string, unknown> = {};
  for (const [key, item] of Object.entries(value)) {
    if (item === undefined) continue;
    // As a property of that name it would be taken for the prototype.
    if (key === "__proto__") Object.defineProperty(record, key, { value: fitted(item, depth), enumerable: true });
    else record[key] = fitted(item, depth);
  }
  return record;
}
