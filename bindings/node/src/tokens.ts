/** Where a client's tokens come from. */

import { ConfigError } from "./errors.js";
import type { TokenProvider, TokenRequest } from "./types.js";

/** A token, and for how many ms it is valid, where that is known. */
export type Granted = readonly [token: string, expiresInMs: number | null];

export class Tokens {
  #fixed: string | undefined;
  #provider: TokenProvider | undefined;
  /** Aborted when the token that is being fetched is no longer needed. */
  #fetching: AbortController | undefined;

  constructor(token: string | TokenProvider, provider: TokenProvider | undefined) {
    this.#provider = typeof token === "function" ? token : provider;
    if (this.#provider === undefined)
      this.#fixed = checked(token as string, "a token is missing: give a string, or a function that gives one");
  }

  /** The one token, unless a function gives them. */
  get fixed(): string | undefined {
    return this.#provider === undefined ? this.#fixed : undefined;
  }

  /** Gives this one from now on. */
  replace(token: string): void {
    this.#fixed = checked(token, "updateToken: text is expected");
    this.#provider = undefined;
  }

  /** Fetches one; an earlier fetch is no longer needed. */
  async fetch(request: Omit<TokenRequest, "signal">): Promise<Granted> {
    this.abort();
    if (this.#provider === undefined) return [this.#fixed ?? "", null];
    this.#fetching = new AbortController();
    const given = await this.#provider({ ...request, signal: this.#fetching.signal });
    const { token, expiresAt } = typeof given === "string" ? { token: given, expiresAt: undefined } : Object(given);
    if (typeof token !== "string") throw new TypeError("the token provider gave no token");
    return [token, expiresAt === undefined ? null : Math.max(0, Number(expiresAt) - Date.now())];
  }

  /** No token is needed now. */
  abort(): void {
    this.#fetching?.abort();
  }
}

/** What a provider's failure says, and whether asking again is of no use. */
export function whyNoToken(failure: unknown): readonly [why: string, fatal: boolean] {
  const { message, fatal } = Object(failure);
  const why = typeof message === "string" ? message : typeof failure === "object" ? "no reason given" : String(failure);
  return [`the token provider failed: ${why}`, fatal === true];
}

function checked(token: string, complaint: string): string {
  if (typeof token !== "string" || token === "") throw new ConfigError(complaint);
  return token;
}
