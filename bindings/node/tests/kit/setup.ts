/** What the specification suite runs against here: the package as it was built, and brokers as processes. */

// @ts-expect-error its types are those of the sources
import * as nolag from "../../dist/index.mjs";
import { Broker } from "./broker.js";
import { provide } from "./under-test.js";

provide({ nolag, startBroker: (settings, token) => Broker.start(settings, token) });
