/** The package in Node. */

import type { NoLagClient } from "./client.js";
import { factory } from "./factory.js";
import { node } from "./platform/node.js";

export * from "./common.js";

/**
 * Makes a client; nothing is sent yet.
 *
 * @param token a token, or a function that is asked for one before every connection.
 */
export const NoLag = factory(node);
export type NoLag = NoLagClient;
/** The published package's name of the class. */
export const NoLagSocket = NoLag;
export type NoLagSocket = NoLagClient;
export default NoLag;
