// Unpacks the browser that @sparticuz/chromium brings, with the libraries that a bare machine lacks, into ./unpacked.

import { spawnSync } from "node:child_process";
import { createReadStream, createWriteStream } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { pipeline } from "node:stream/promises";
import { fileURLToPath } from "node:url";
import { createBrotliDecompress } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const packed = join(here, "node_modules", "@sparticuz", "chromium", "bin");
const unpacked = join(here, "unpacked");

await rm(unpacked, { recursive: true, force: true });
await mkdir(unpacked);

async function decompress(name, mode) {
  const to = join(unpacked, name);
  await pipeline(createReadStream(join(packed, `${name}.br`)), createBrotliDecompress(), createWriteStream(to, { mode }));
  return to;
}

for (const name of ["al2023.tar", "swiftshader.tar", "fonts.tar"]) {
  // A file and not a pipe, which tar may close as soon as it has read the last entry.
  const archive = await decompress(name, 0o644);
  const { status } = spawnSync("tar", ["-x", "--no-same-owner", "-C", unpacked, "-f", archive], { stdio: "inherit" });
  if (status !== 0) throw new Error(`tar could not unpack ${name}`);
  await rm(archive);
}
await decompress("chromium", 0o755);
