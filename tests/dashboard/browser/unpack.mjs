// Unpacks the browser that @sparticuz/chromium brings, with the libraries that a bare machine lacks, into ./unpacked.

import { spawn } from "node:child_process";
import { createReadStream, createWriteStream } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { once } from "node:events";
import { dirname, join } from "node:path";
import { pipeline } from "node:stream/promises";
import { fileURLToPath } from "node:url";
import { createBrotliDecompress } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const packed = join(here, "node_modules", "@sparticuz", "chromium", "bin");
const unpacked = join(here, "unpacked");

await rm(unpacked, { recursive: true, force: true });
await mkdir(unpacked);
for (const name of ["al2023", "swiftshader", "fonts"]) {
  const tar = spawn("tar", ["-x", "--no-same-owner", "-C", unpacked], { stdio: ["pipe", "inherit", "inherit"] });
  const ended = once(tar, "close");
  await pipeline(createReadStream(join(packed, `${name}.tar.br`)), createBrotliDecompress(), tar.stdin);
  const [code] = await ended;
  if (code !== 0) throw new Error(`tar could not unpack ${name}`);
}
const browser = createWriteStream(join(unpacked, "chromium"), { mode: 0o755 });
await pipeline(createReadStream(join(packed, "chromium.br")), createBrotliDecompress(), browser);
