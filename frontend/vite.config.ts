import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import react from "@vitejs/plugin-react";
import { type Plugin, defineConfig } from "vite";

const OUT = "../src/p2p/api/static";
const GENERATED = join("src", "api", "schema.ts");
const SINGLE_FILES = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];

/** Leaves the digest of the sources beside the page, so that a test can say if it is out of date. */
function sourceDigest(): Plugin {
  return {
    name: "source-digest",
    apply: "build",
    closeBundle() {
      const sources = readdirSync("src", { recursive: true, withFileTypes: true })
        .filter((entry) => entry.isFile() && !/\.test\.tsx?$/.test(entry.name))
        .map((entry) => join(entry.parentPath, entry.name))
        .filter((path) => path !== GENERATED);
      const digest = createHash("sha256");
      for (const path of [...SINGLE_FILES, ...sources].sort()) {
        digest.update(`${path}\0`).update(readFileSync(path)).update("\0");
      }
      writeFileSync(join(OUT, "sources.sha256"), `${digest.digest("hex")}\n`);
    },
  };
}

/** KaTeX names each font three times; every browser that runs this page takes the first. */
function oneFontFormat(): Plugin {
  return {
    name: "one-font-format",
    enforce: "pre",
    transform(code, id) {
      return id.endsWith("katex.min.css") ? code.replace(/,url\([^)]*\.(?:woff|ttf)\) ?format\([^)]*\)/g, "") : null;
    },
  };
}

export default defineConfig({
  plugins: [oneFontFormat(), react(), sourceDigest()],
  build: {
    outDir: OUT,
    emptyOutDir: true,
    // The page's content policy takes no data: addresses for fonts and scripts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8420" } },
});
