// Bundles the front end into the files that the Python package carries: a script and its style for each page.
import { build, context } from "esbuild";
import { statSync } from "node:fs";

const LARGEST = 150_000; // bytes of a file: the kernel sends it once with every widget

const SCRIPTS = { live: "src/run/widget.js", sweep: "src/sweep/widget.js", space: "src/space/widget.js" };
const STYLES = { live: "src/run/run.css", sweep: "src/sweep/sweep.css", space: "src/space/space.css" };

/** @type {import("esbuild").BuildOptions} */
const options = {
  entryPoints: SCRIPTS,
  outdir: "../nbdist/ui/static",
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "inline",
  logLevel: "info",
};

if (process.argv.includes("--watch")) {
  await (await context(options)).watch();
} else {
  await build({ ...options, define: {} });
  await build({ ...options, entryPoints: STYLES });
  for (const name of Object.keys(SCRIPTS).flatMap((page) => [`${page}.js`, `${page}.css`])) {
    const { size } = statSync(`${options.outdir}/${name}`);
    if (size > LARGEST) throw new Error(`${name} has ${size} bytes; at most ${LARGEST} may be`);
  }
}
