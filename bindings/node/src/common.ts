/** What the package exports on every platform. */

export type { NoLagClient } from "./client.js";
export * from "./errors.js";
export type { NoLagFactory } from "./factory.js";
export { Extension } from "./payload.js";
export { AppContext, LobbyContext, type LobbyUpdate, RoomContext } from "./rooms.js";
export { Subscription } from "./subscription.js";
export type * from "./types.js";
export { VERSION } from "./version.js";
