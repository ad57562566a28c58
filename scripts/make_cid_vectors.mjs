// Writes tests/vectors/cids.json: identifiers of files and of a directory, by another implementation than ours.
//
//     mkdir -p build/cids && cd build/cids && npm init -y && npm install ipfs-unixfs-importer@17.1.1 blockstore-core
//     cp ../../scripts/make_cid_vectors.mjs . && node make_cid_vectors.mjs > ../../tests/vectors/cids.json

import { MemoryBlockstore } from 'blockstore-core'
import { importer } from 'ipfs-unixfs-importer'
import { fixedSize } from 'ipfs-unixfs-importer/chunker'
import { balanced } from 'ipfs-unixfs-importer/layout'

const CHUNK = 262144
const LINKS = 174
const ABOUT =
  'CIDv1 of files and of one directory, as ipfs-unixfs-importer 17.1.1 for JavaScript computes them (raw leaves, fixed ' +
  'chunks of 262144 bytes, balanced layout with 174 links). Byte i of a file is (7 * i + floor(i / 256)) mod 251. ' +
  'Files of the directory: their sizes by path, but a.json is the text {}.'

const options = {
  cidVersion: 1,
  rawLeaves: true,
  reduceSingleLeafToSelf: true,
  wrapWithDirectory: false,
  chunker: fixedSize({ chunkSize: CHUNK }),
  layout: balanced({ maxChildrenPerNode: LINKS })
}

function content (size) {
  return Uint8Array.from({ length: size }, (_, i) => (7 * i + (i >> 8)) % 251)
}

async function root (entries) {
  let last
  for await (const entry of importer(entries, new MemoryBlockstore(), options)) last = entry
  return last.cid.toString()
}

const files = {}
const sizes = [0, 1, 12, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 17]
for (const size of [...sizes, LINKS * CHUNK, LINKS * CHUNK + 1, 176 * CHUNK + 5]) {
  files[size] = await root([{ content: content(size) }])
}
const tree = { 'a.json': null, B: 0, 'größe — 大': 12, 'sub/big': CHUNK + 5, 'sub/deeper/x': 1 }
const entries = Object.entries(tree).map(([name, size]) => ({
  path: `tree/${name}`,
  content: size === null ? new TextEncoder().encode('{}') : content(size)
}))
console.log(JSON.stringify({ about: ABOUT, files, directory: { cid: await root(entries), sizes: tree } }, null, 1))
