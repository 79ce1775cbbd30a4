/** `NoLag`, callable with and without `new`, for a platform. */

import { NoLagClient } from "./client.js";
import type { Platform } from "./native.js";
import type { NoLagOptions, TokenProvider } from "./types.js";

/** Makes clients; `new` may be left out. */
export interface NoLagFactory {
  (token: string | TokenProvider, options?: NoLagOptions): NoLagClient;
  new (token: string | TokenProvider, options?: NoLagOptions): NoLagClient;
  readonly prototype: NoLagClient;
}

export function factory(platform: Platform): NoLagFactory {
  function NoLag(token: string | TokenProvider, options?: NoLagOptions): NoLagClient {
    return new NoLagClient(platform, token, options);
  }
  NoLag.prototype = NoLagClient.prototype; // so that `client instanceof NoLag` holds
  return NoLag as unknown as NoLagFactory;
}
