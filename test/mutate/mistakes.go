package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// variable has the number of the mistake that is made; 0 or nothing: none.
const variable = "MUTATE_MISTAKE"

// mutated is a package with all mistakes in it.
type mutated struct {
	folder   string
	files    map[string]string // by path
	mistakes []mistake
}

type mistake struct{ at, what string }

// load reads a package and puts the mistakes into it.
func load(folder string) (*mutated, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return strings.HasSuffix(path, "_test.go") })
	var files []*ast.File
	for _, path := range paths {
		f, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no package", folder)
	}
	p, name := &mutated{folder: folder, files: make(map[string]string)}, files[0].Name.Name
	info := &types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object)}
	checker := types.Config{Importer: importer.ForCompiler(set, "source", nil)}
	pkg, err := checker.Check(name, set, files, info)
	if err != nil {
		return nil, err
	}
	for i, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		w := &writer{mutated: p, set: set, info: info, pkg: pkg, source: source, file: files[i]}
		p.files[path] = w.text(files[i])
	}
	p.files[filepath.Join(folder, "zz_mistake.go")] = fmt.Sprintf("package %s\nimport (\"os\"; \"strconv\")\nvar madeMistake, _ = strconv.Atoi(os.Getenv(%q))\n", name, variable)
	return p, nil
}

// writer writes one file with its mistakes.
type writer struct {
	*mutated
	set    *token.FileSet
	info   *types.Info
	pkg    *types.Package
	source []byte
	file   *ast.File
}

func (w *writer) offset(p token.Pos) int { return w.set.Position(p).Offset }

// original is the text of a node as it is.
func (w *writer) original(n ast.Node) string {
	return string(w.source[w.offset(n.Pos()):w.offset(n.End())])
}

// add notes a mistake and returns its number.
func (w *writer) add(n ast.Node, format string, args ...any) int {
	at := w.set.Position(n.Pos())
	w.mistakes = append(w.mistakes, mistake{fmt.Sprintf("%s:%d:%d", filepath.Base(at.Filename), at.Line, at.Column), fmt.Sprintf(format, args...)})
	return len(w.mistakes)
}

// text is that of a node with the mistakes below it.
func (w *writer) text(n ast.Node) string {
	var children []ast.Node
	ast.Inspect(n, func(c ast.Node) bool {
		if c == nil || c == n {
			return c == n
		}
		if _, comment := c.(*ast.CommentGroup); !comment {
			children = append(children, c)
		}
		return false
	})
	slices.SortFunc(children, func(a, b ast.Node) int { return int(a.Pos() - b.Pos()) })
	var out strings.Builder
	at := w.offset(n.Pos())
	if _, ok := n.(*ast.File); ok {
		at = 0
	}
	for _, c := range children {
		if w.offset(c.Pos()) < at {
			continue // the type of a function begins before its name
		}
		out.Write(w.source[at:w.offset(c.Pos())])
		out.WriteString(w.mutate(n, c))
		at = w.offset(c.End())
	}
	end := w.offset(n.End())
	if _, ok := n.(*ast.File); ok {
		end = len(w.source)
	}
	out.Write(w.source[at:end])
	return out.String()
}

// mutate is the text of a node with the mistakes in it and below it.
func (w *writer) mutate(parent, n ast.Node) string {
	switch n := n.(type) {
	case *ast.GenDecl:
		if n.Tok == token.CONST || n.Tok == token.TYPE || n.Tok == token.IMPORT {
			return w.original(n)
		}
	case ast.Stmt:
		if inList(parent) {
			return w.statement(n)
		}
	case ast.Expr:
		return w.expression(parent, n)
	}
	return w.text(n)
}

func inList(parent ast.Node) bool {
	switch parent.(type) {
	case *ast.BlockStmt, *ast.CaseClause:
		return true
	}
	return false
}

// statement leaves a statement out, or changes it.
func (w *writer) statement(n ast.Stmt) string {
	text := w.text(n)
	switch n := n.(type) {
	case *ast.IncDecStmt:
		gone := w.add(n, "without %s", w.original(n))
		other := map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok]
		turned := w.add(n, "%s as %s", w.original(n), other)
		return fmt.Sprintf("switch madeMistake { case %d: case %d: %s%s; default: %s }", gone, turned, w.original(n.X), other, text)
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			return text
		}
		gone := w.add(n, "without %s", w.original(n))
		if other := map[token.Token]string{token.ADD_ASSIGN: "-=", token.SUB_ASSIGN: "+=", token.MUL_ASSIGN: "/=", token.QUO_ASSIGN: "*="}[n.Tok]; other != "" && w.isNumber(n.Lhs[0]) {
			turned := w.add(n, "%s as %s", w.original(n), other)
			return fmt.Sprintf("switch madeMistake { case %d: case %d: %s %s %s; default: %s }", gone, turned, w.original(n.Lhs[0]), other, w.original(n.Rhs[0]), text)
		}
		return fmt.Sprintf("if madeMistake != %d { %s }", gone, text)
	case *ast.ExprStmt, *ast.DeferStmt:
		return fmt.Sprintf("if madeMistake != %d { %s }", w.add(n, "without %s", w.original(n)), text)
	case *ast.BranchStmt:
		if n.Tok == token.CONTINUE || n.Tok == token.BREAK {
			return fmt.Sprintf("if madeMistake != %d { %s }", w.add(n, "without %s", w.original(n)), text)
		}
	}
	return text
}

func (w *writer) isNumber(e ast.Expr) bool {
	b, ok := w.info.Types[e].Type.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsNumeric != 0
}

func (w *writer) isBool(e ast.Expr) bool {
	t := w.info.Types[e].Type
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0
}

var others = map[token.Token][]string{
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.EQL: {"!="}, token.NEQ: {"=="}, token.LAND: {"||"}, token.LOR: {"&&"},
	token.ADD: {"-"}, token.SUB: {"+"}, token.MUL: {"/"}, token.QUO: {"*"}, token.REM: {"*"},
}

// expression changes an operator, turns a condition around, or returns something else.
func (w *writer) expression(parent ast.Node, n ast.Expr) string {
	value := w.info.Types[n]
	if value.IsType() {
		return w.original(n)
	}
	if value.Value != nil { // a constant
		if _, returned := parent.(*ast.ReturnStmt); !returned {
			return w.original(n)
		}
	}
	if b, ok := n.(*ast.BinaryExpr); ok && value.Value == nil {
		if kind, ok := w.typeName(value.Type); ok && (w.isBool(n) || w.isNumber(n)) {
			return w.binary(b, kind)
		}
	}
	text := w.text(n)
	switch parent := parent.(type) {
	case *ast.ReturnStmt:
		return w.returned(parent, n, text)
	case *ast.IfStmt, *ast.ForStmt, *ast.BinaryExpr, *ast.UnaryExpr:
		if w.isBool(n) {
			return fmt.Sprintf("((%s) != (madeMistake == %d))", text, w.add(n, "not %s", w.original(n)))
		}
	case *ast.CaseClause:
		if w.isBool(n) && w.file != nil {
			return fmt.Sprintf("((%s) != (madeMistake == %d))", text, w.add(n, "not %s", w.original(n)))
		}
	}
	return text
}

func (w *writer) binary(b *ast.BinaryExpr, kind string) string {
	x, y := w.mutate(b, b.X), w.mutate(b, b.Y)
	var cases strings.Builder
	for _, other := range others[b.Op] {
		if y := w.info.Types[b.Y].Value; other == "/" && y != nil && constant.Sign(y) == 0 {
			continue
		}
		fmt.Fprintf(&cases, "case %d: return (%s) %s (%s)\n", w.add(b, "%s: %s as %s", w.original(b), b.Op, other), x, other, y)
	}
	if cases.Len() == 0 {
		return fmt.Sprintf("(%s) %s (%s)", x, b.Op, y)
	}
	return fmt.Sprintf("func() %s { switch madeMistake {\n%s}\nreturn (%s) %s (%s) }()", kind, cases.String(), x, b.Op, y)
}

// returned returns something else: the zero value, or what is not the constant.
func (w *writer) returned(parent *ast.ReturnStmt, n ast.Expr, text string) string {
	value := w.info.Types[n]
	if _, several := value.Type.(*types.Tuple); several || value.IsNil() {
		return text
	}
	if w.isBool(n) {
		return fmt.Sprintf("((%s) != (madeMistake == %d))", text, w.add(n, "returns not %s", w.original(n)))
	}
	kind, ok := w.typeName(value.Type)
	if !ok {
		return text
	}
	other := ""
	switch t := value.Type.Underlying().(type) {
	case *types.Basic:
		switch {
		case value.Value != nil: // other constants are in tables of their own
			return text
		case t.Info()&types.IsNumeric != 0:
			other = "0"
		case t.Info()&types.IsString != 0:
			other = `""`
		}
	case *types.Pointer, *types.Slice, *types.Map, *types.Interface, *types.Signature:
		other = "nil"
	case *types.Struct:
		other = kind + "{}"
	}
	if other == "" || other == w.original(n) {
		return text
	}
	return fmt.Sprintf("func() %s { if madeMistake == %d { return %s }\nreturn %s }()", kind, w.add(n, "returns %s instead of %s", other, w.original(n)), other, text)
}

// typeName is how a type is called in the file, if it can be.
func (w *writer) typeName(t types.Type) (string, bool) {
	known := true
	name := types.TypeString(types.Default(t), func(p *types.Package) string {
		if p == w.pkg || p.Path() == w.pkg.Path() {
			return ""
		}
		for _, spec := range w.file.Imports {
			if spec.Name == nil && strings.Trim(spec.Path.Value, `"`) == p.Path() {
				return p.Name()
			}
		}
		known = false
		return p.Name()
	})
	if _, generic := t.(*types.TypeParam); generic || strings.Contains(name, "invalid") {
		return "", false
	}
	return name, known
}
