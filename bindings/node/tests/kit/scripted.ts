/**
 * An endpoint that speaks the wire protocol and does exactly what a test says: answer late, stay silent, refuse, close with a
 * code, cut. Left alone it agrees to everything and delivers nothing. It shares no code with what it tests.
 */

import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { decode, encode } from "@msgpack/msgpack";
import { onTestFinished } from "vitest";
import { type WebSocket, WebSocketServer } from "ws";

export type Frame = Record<string, unknown> & { type: string };
export type Rule = (link: Link, frame: Frame) => void;

/** Leaves it unanswered. */
export const silent: Rule = () => {};

/** Answers with an error, as a broker does to a request. */
export function refuse(fields: object): Rule {
  return (link, frame) => {
    const about = Object.fromEntries(
      ["topic", "msgRef", "roomId", "lobbyId"].filter((name) => name in frame).map((name) => [name, frame[name]]),
    );
    link.send({ type: "error", ...about, ...fields });
  };
}

/** One connection of a client, seen from the broker. */
export class Link {
  readonly frames: Frame[] = [];
  isFrozen = false;
  readonly #socket: WebSocket;
  #news: (() => void)[] = [];

  constructor(broker: Scripted, socket: WebSocket) {
    this.#socket = socket;
    socket.on("error", () => {}); // whether the client is still there is what tests look at
    socket.on("message", (data: Buffer) => {
      if (this.isFrozen) return;
      const frame = data.length === 0 ? { type: "heartbeat" } : (decode(data) as Frame);
      this.frames.push(frame);
      (broker.rules[frame.type] ?? agree)(this, frame);
      for (const tell of this.#news.splice(0)) tell();
    });
  }

  /** The first frame of this type, when it has come. */
  async next(type: string): Promise<Frame> {
    for (;;) {
      const found = this.frames.find((frame) => frame.type === type);
      if (found !== undefined) return found;
      await new Promise<void>((resolve) => this.#news.push(resolve));
    }
  }

  send(frame: object): void {
    this.#socket.send(encode(frame));
  }

  heartbeat(): void {
    this.#socket.send(Buffer.alloc(0));
  }

  close(code: number): void {
    this.#socket.close(code);
  }

  /** Ends the connection without a word. */
  cut(): void {
    this.#socket.terminate();
  }
}

/** Answers as a broker does that allows everything. */
function agree(link: Link, frame: Frame): void {
  const { topic, roomId, lobbyId } = frame;
  const ref = "msgRef" in frame ? { msgRef: frame.msgRef } : {};
  const answers: Record<string, object> = {
    auth: { type: "auth", success: true, actorTokenId: "alice", projectId: "demo-project", protocolVersion: 2 },
    subscribe: { type: "subscribed", topic, ...ref },
    unsubscribe: { type: "unsubscribed", topic, ...ref },
    setFilters: { type: "filtersUpdated", topic, filters: frame.filters, ...ref },
    publish: { type: "published", topic, ...ref },
    getPresence: { type: "presenceList", roomId, data: [], ...ref },
    lobbySubscribe: { type: "lobbySubscribed", lobbyId, presence: {}, ...ref },
    getLobbyPresence: { type: "lobbyPresenceList", lobbyId, presence: {}, ...ref },
  };
  if (frame.type === "heartbeat") link.heartbeat();
  else if (answers[frame.type] !== undefined) link.send(answers[frame.type] as object);
}

/** Takes connections, and follows `rules`: what to do with a type of frame. */
export class Scripted {
  readonly rules: Record<string, Rule> = {};
  /** What a client is told instead of being let in. */
  refusal: number | undefined;
  readonly #server: Server;
  readonly #links: Link[] = [];
  #arrivals: ((link: Link) => void)[] = [];

  private constructor() {
    this.#server = createServer();
    const sockets = new WebSocketServer({ noServer: true });
    this.#server.on("upgrade", (request, socket, head) => {
      if (this.refusal !== undefined) {
        socket.end(`HTTP/1.1 ${this.refusal} Not Here\r\nContent-Length: 0\r\n\r\n`);
        return;
      }
      sockets.handleUpgrade(request, socket, head, (opened) => {
        const link = new Link(this, opened);
        this.#links.push(link);
        for (const tell of this.#arrivals.splice(0)) tell(link);
      });
    });
  }

  /** One that is closed when the test ends. */
  static async open(): Promise<Scripted> {
    const scripted = new Scripted();
    scripted.#server.listen(0, "127.0.0.1");
    await once(scripted.#server, "listening");
    onTestFinished(() => scripted.shut());
    return scripted;
  }

  get url(): string {
    return `ws://127.0.0.1:${(this.#server.address() as AddressInfo).port}/ws`;
  }

  /** The newest connection, when there is one. */
  async link(): Promise<Link> {
    return this.#links.at(-1) ?? new Promise((resolve) => this.#arrivals.push(resolve));
  }

  /** Cuts all connections and takes none. */
  shut(): void {
    this.#server.close();
    for (const link of this.#links) link.cut();
  }
}
