import js from "@eslint/js";
import globals from "globals";

const BROWSER = ["probe/**/*.js"];

export default [
  { ignores: ["probe/views/panel/static/panel.js", "docs/**", "site/**", ".venv*/**", "node_modules/**", "probe/jupyter/labextension/**"] },
  js.configs.recommended,
  {
    files: BROWSER,
    languageOptions: { ecmaVersion: 2025, sourceType: "module", globals: globals.browser },
  },
  { files: ["tests/views/*.js", "tests/jupyter/*.js"], languageOptions: { globals: globals.browser } },
  { files: ["*.mjs", "*.js", "tests/js/**", "probe/jupyter/lab/rspack.config.js"], languageOptions: { globals: globals.node } },
  {
    rules: {
      complexity: ["error", 14],
      "max-lines-per-function": ["error", { max: 60, skipComments: true, skipBlankLines: true }],
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      "no-shadow": ["error", { builtinGlobals: false }],
      "object-shorthand": "error",
    },
  },
];
