// A real OpenID provider for tests/clawweb/test_single_sign_on.py. Arguments: the callback's address.
// Says its port. Anybody signs in by a name: "ada" is verified at example.org, "eve" is not verified.
import { createServer } from "node:http";
import Provider from "oidc-provider";

const about = (id) => ({
  sub: id,
  preferred_username: id,
  email: `${id}@example.org`,
  email_verified: id !== "eve",
});
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
  server.on("request", provider.callback());
  console.log(port);
});
