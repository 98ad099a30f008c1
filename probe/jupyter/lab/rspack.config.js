// Names of modules that depend on the folder would make another bundle in every clone. The names of chunks depend on where
// the packages lie beside it: build with a node_modules that is a folder of the clone, not a link to another one.
module.exports = { optimization: { moduleIds: "natural" } };
