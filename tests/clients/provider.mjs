// A real OpenID provider for tests/clawweb/test_single_sign_on.py. Arguments: the callback's address.
// Says its port. Anybody signs in by a name: "ada" is verified at example.org, "eve" is not verified,
// and whoever is called after one of `forgeries` gets an ID token of that kind.
import { createHmac, createPublicKey, generateKeyPairSync, sign } from "node:crypto";
import { createServer } from "node:http";
import Provider from "oidc-provider";

const about = (id) => ({
  sub: id,
  preferred_username: id,
  email: `${id}@example.org`,
  email_verified: id !== "eve",
});
const packed = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
const stranger = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey;
const signed = (key, text) => sign("sha256", Buffer.from(text), key).toString("base64url");
// Each takes the real token's parts and the published key, and says the same of the same person.
const forgeries = {
  "signed-by-a-stranger": ([head, body]) => `${head}.${body}.${signed(stranger, `${head}.${body}`)}`,
  "changed-afterwards": ([head, body, signature]) => {
    return `${head}.${packed({ ...read(body), admin: true })}.${signature}`;
  },
  "not-signed": ([head, body]) => `${packed({ ...read(head), alg: "none" })}.${body}.`,
  "signed-by-the-public-key": ([head, body], key) => {
    const secret = createPublicKey({ key, format: "jwk" }).export({ type: "spki", format: "pem" });
    const text = `${packed({ ...read(head), alg: "HS256" })}.${body}`;
    return `${text}.${createHmac("sha256", secret).update(text).digest("base64url")}`;
  },
  "signed-by-nobodys-key": ([head, body]) => {
    const text = `${packed({ ...read(head), kid: "nobodys" })}.${body}`;
    return `${text}.${signed(stranger, text)}`;
  },
};
const read = (part) => JSON.parse(Buffer.from(part, "base64url"));
const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const port = server.address().port;
  const provider = new Provider(`http://127.0.0.1:${port}`, {
    clients: [
      { client_id: "clawweb", client_secret: "a secret of ours", redirect_uris: [process.argv[2]] },
    ],
    claims: { email: ["email", "email_verified"], profile: ["preferred_username"] },
    findAccount: (_, id) => ({ accountId: id, claims: () => about(id) }),
    pkce: { required: () => true },
    // Consent is given: what is tried here is signing in.
    loadExistingGrant: async (context) => {
      const grant = new context.oidc.provider.Grant({
        clientId: context.oidc.client.clientId,
        accountId: context.oidc.session.accountId,
      });
      grant.addOIDCScope("openid profile email");
      await grant.save();
      return grant;
    },
  });
  provider.use(async (context, next) => {
    await next();
    if (!context.body?.id_token) return;
    const parts = context.body.id_token.split(".");
    const forge = forgeries[read(parts[1]).sub];
    if (!forge) return;
    const published = await (await fetch(`${provider.issuer}/jwks`)).json();
    context.body.id_token = forge(parts, published.keys[0]);
  });
  server.on("request", provider.callback());
  console.log(port);
});
