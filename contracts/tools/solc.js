// The npm package `solc` (wasm) behind the two command line switches that tools use: `--version` and `--standard-json`.
// The package's own `solcjs` prints notices into stdout, which breaks whoever parses it.
"use strict";
const fs = require("node:fs");
const solc = require("../../node_modules/solc");

const args = process.argv.slice(2);
if (args.includes("--version")) {
  process.stdout.write(`solc, the solidity compiler commandline interface\nVersion: ${solc.version()}\n`);
} else if (args.includes("--standard-json")) {
  const file = args.find((arg, i) => !arg.startsWith("-") && !["--base-path", "--include-path", "--allow-paths"].includes(args[i - 1]));
  process.stdout.write(solc.compile(fs.readFileSync(file ?? 0, "utf8")));
} else {
  process.stderr.write("this wrapper answers --version and --standard-json only\n");
  process.exit(2);
}
