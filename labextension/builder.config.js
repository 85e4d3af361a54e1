// Settings added to those of the federated extension's bundler: the drawing code is the live view's.
const path = require("path");

module.exports = {
  resolve: { alias: { "@widget": path.resolve(__dirname, "../widget/src") } }
};
