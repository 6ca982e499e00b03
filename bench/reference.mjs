// Starts the Durable Streams reference server, file-backed: node reference.mjs <module> <port> <directory>
const [module, port, dataDir] = process.argv.slice(2);
const { DurableStreamTestServer } = await import(module);
await new DurableStreamTestServer({ port: Number(port), host: "127.0.0.1", dataDir }).start();
