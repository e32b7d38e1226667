// Starts `glim serve` with the built-in model on a free port, and opens its page.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const CHROMIUM = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const GLIM = process.env.GLIM ?? fileURLToPath(new URL("../../target/release/glim", import.meta.url));

/** A running server: `url`, and `stop`, which ends it by SIGTERM and gives its exit code. */
export async function serve(...args) {
  const child = spawn(GLIM, ["serve", "--json", "--port", "0", ...args], { stdio: ["ignore", "pipe", "pipe"] });
  const log = [];
  createInterface({ input: child.stderr }).on("line", (line) => log.push(line));
  const ended = new Promise((resolve) => child.on("close", resolve));
  const url = await new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).once("line", (line) => resolve(`http://${JSON.parse(line).address}/`));
    child.on("error", reject);
    ended.then((code) => reject(new Error(`glim serve ended with ${code}:\n${log.join("\n")}`)));
  });
  // It listens before its model is there.
  while (!(await fetch(`${url}ready`)).ok) await new Promise((resolve) => setTimeout(resolve, 50));
  return {
    url,
    stop() {
      child.kill("SIGTERM");
      return ended;
    },
  };
}

export function browser() {
  assert.ok(CHROMIUM, "no Chromium found: install it, or name it by CHROMIUM");
  // Containers give neither the namespaces of its sandbox nor, at times, a large /dev/shm.
  return chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
}

/** The page, and what went wrong on it: errors, and requests to anybody but the server. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const wrong = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && wrong.push(message.text()));
  page.on("pageerror", (error) => wrong.push(error.message));
  page.on("dialog", (dialog) => {
    wrong.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  context.on("request", (request) => {
    if (!request.url().startsWith(url)) wrong.push(`asks ${request.url()}`);
  });
  await page.goto(url);
  await page.waitForSelector("body:not(.offline) #model:not(:text('connecting'))");
  return { page, wrong, context };
}
